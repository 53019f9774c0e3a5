"""Offers our functions by the names of torchvision's and torchaudio's modules where those are not installed.

Most processors of transformers need a few functions of them. transformers looks once for what is there: when it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from omni_transformers import pictures, spectra

_PICTURES = (
    "InterpolationMode resize pad crop normalize to_dtype grayscale_to_rgb rgb_to_grayscale pil_to_tensor to_pil_image"
)

_MODULES: dict[str, tuple[ModuleType, str]] = {
    "torchvision": (pictures, ""),
    "torchvision.io": (pictures, ""),
    "torchvision.transforms": (pictures, "InterpolationMode"),
    "torchvision.transforms.functional": (pictures, _PICTURES),
    "torchvision.transforms.v2": (pictures, "InterpolationMode"),
    "torchvision.transforms.v2.functional": (pictures, _PICTURES),
    "torchaudio": (spectra, ""),
    "torchaudio.transforms": (spectra, "MelSpectrogram"),
    "torchaudio.functional": (spectra, "resample compute_deltas forced_align merge_tokens"),
    "torchaudio.compliance": (spectra, ""),
    "torchaudio.compliance.kaldi": (spectra, "fbank"),
}
"""Where each module's names come from."""


def stand_in() -> None:
    """Register the modules of each package that is not installed, unless transformers has looked for it already."""
    if "transformers.utils.import_utils" in sys.modules:
        return
    missing = {package for package in ("torchvision", "torchaudio") if find_spec(package) is None}
    for name, (source, names) in _MODULES.items():
        package, _, _ = name.partition(".")
        if package not in missing:
            continue
        module = ModuleType(name, source.__doc__)
        module.__spec__, module.__file__, module.__path__ = ModuleSpec(name, None, is_package=True), source.__file__, []
        vars(module).update({each: getattr(source, each) for each in names.split()})
        vars(module).update(__version__="0.0.0", __getattr__=_missing(name))
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)


def _missing(module: str) -> Callable[[str], Any]:
    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        package, _, _ = module.partition(".")
        raise ImportError(f"{module}.{name} is needed, of {package}, which is not installed; pip install {package}")

    return missing
