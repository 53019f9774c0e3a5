"""Offers our functions by the names of torchvision's, torchaudio's and num2words' modules where they are not installed. Imports no torch.

Most processors of transformers need a few functions of them. transformers looks once for what is there: when it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PICTURES = (
    "InterpolationMode resize pad crop normalize to_dtype grayscale_to_rgb rgb_to_grayscale pil_to_tensor to_pil_image"
)

_MODULES = {
    "torchvision": ("pictures", ""),
    "torchvision.io": ("pictures", ""),
    "torchvision.transforms": ("pictures", "InterpolationMode"),
    "torchvision.transforms.functional": ("pictures", _PICTURES),
    "torchvision.transforms.v2": ("pictures", "InterpolationMode"),
    "torchvision.transforms.v2.functional": ("pictures", _PICTURES),
    "torchaudio": ("spectra", ""),
    "torchaudio.transforms": ("spectra", "MelSpectrogram"),
    "torchaudio.functional": ("spectra", "resample compute_deltas forced_align merge_tokens"),
    "torchaudio.compliance": ("spectra", ""),
    "torchaudio.compliance.kaldi": ("spectra", "fbank"),
    "num2words": ("number_words", "num2words"),
}
"""Our module and its names, by theirs."""


_VERSION = "0.27.0"
"""From which transformers expects Lanczos' filter."""


class _StandIns(MetaPathFinder, Loader):
    """Finds and makes them. It is asked last: a package that is installed comes before."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, within = fullname.partition(".")
        if fullname not in _MODULES or (within and not isinstance(sys.modules[package].__loader__, _StandIns)):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        ours, names = _MODULES[module.__name__]
        source = import_module(f"{__name__}.{ours}")
        vars(module).update({each: getattr(source, each) for each in names.split()})

        def missing(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if f"{module.__name__}.{name}" in _MODULES:
                return import_module(f"{module.__name__}.{name}")
            package, _, _ = module.__name__.partition(".")
            raise ImportError(f"{module.__name__}.{name}: {package} is not installed; pip install {package}")

        vars(module).update(__version__=_VERSION, __file__=source.__file__, __getattr__=missing)


def stand_in() -> None:
    """Offer them from now on, in this process."""
    if not any(isinstance(each, _StandIns) for each in sys.meta_path):
        sys.meta_path.append(_StandIns())
