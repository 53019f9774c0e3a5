"""A checkpoint in diffusers' layout: a folder per component beside ``model_index.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from omni_core.api import ConfigError, expanded
from omni_torch.api import load_checked, read_json

PIPELINES = {"QwenImagePipeline": False, "QwenImageEditPipeline": True}
"""The pipelines that are read, and whether they edit images."""

ADAPTER = "adapter_config.json"


@frozen
class Checkpoint:
    """A checkpoint's folder.

    Attributes:
        edits: whether its model changes a given image.
    """

    folder: Path
    edits: bool

    @classmethod
    def open(cls, model_path: str) -> Checkpoint:
        """Read ``model_index.json``.

        Raises:
            ConfigError: no such file, or another model's.
        """
        folder = expanded(model_path)
        path = folder / "model_index.json"
        try:
            name = json.loads(path.read_text())["_class_name"]
        except FileNotFoundError:
            raise ConfigError(f"{path}: there is no such file; a checkpoint in diffusers' layout has it") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        if name not in PIPELINES:
            raise ConfigError(f"{path}: _class_name is {name!r}; {' and '.join(PIPELINES)} can be run")
        return cls(folder, PIPELINES[name])

    def component(self, name: str) -> str:
        """Return the folder of a component. Raises ConfigError if there is none."""
        folder = self.folder / name
        if not folder.is_dir():
            raise ConfigError(f"{folder}: the checkpoint has no such folder; download it again")
        return str(folder)

    def scheduler(self) -> dict[str, Any]:
        """Return the config of the noise schedule. Raises ConfigError if it cannot be read."""
        return read_json(Path(self.component("scheduler")) / "scheduler_config.json")

    def load(self, name: str, cls: Any, **options: Any) -> Any:
        """Return a component as an object of ``cls``, by its ``from_pretrained``. Raises ConfigError if it cannot be read."""
        folder = self.component(name)
        return load_checked(folder, lambda: cls.from_pretrained(folder, **options))

    def network(self, name: str, cls: Any, device: str, **options: Any) -> Any:
        """Return a component that is a network, on a device.

        Raises:
            ConfigError: it cannot be read, or weights of it are missing, which its library would make up.
        """
        if (self.folder / name / ADAPTER).exists():  # transformers would load the checkpoint that it names instead
            raise ConfigError(f"{self.folder / name / ADAPTER}: a checkpoint's networks have no adapters; remove it")
        network, info = self.load(name, cls, output_loading_info=True, use_safetensors=True, **options)
        missing = sorted(map(str, info["missing_keys"])) + sorted(map(str, info.get("mismatched_keys", ())))
        if missing:
            raise ConfigError(
                f"{self.folder / name}: {len(missing)} weights are missing or of another shape, such as {missing[0]}"
            )
        return network.to(device).eval()


def dtype_of(name: str | None, device: str) -> torch.dtype | None:
    """Return a dtype by its name; by default float32 on a CPU, and elsewhere ``None``: the checkpoint's own."""
    if name is not None:
        found: torch.dtype = getattr(torch, name)
        return found
    return torch.float32 if torch.device(device).type == "cpu" else None
