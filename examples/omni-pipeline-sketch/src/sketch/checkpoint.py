"""Checkpoints: ``config.json`` with the dimensions, and ``model.safetensors`` with both networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from omni_core.api import ConfigError
from omni_torch.api import written_once

if TYPE_CHECKING:
    import torch

    from sketch.network import Dimensions


def default_model() -> tuple[str, str]:
    """Return the checkpoint of ``omni run`` without ``--model``, made once in the user's cache folder, and a notice about it."""
    notice = "No --model given: using a tiny checkpoint with RANDOM weights. Its images are noise."
    return written_once("sketch-tiny-1", write_checkpoint), notice


def write_checkpoint(folder: Path, seed: int = 0) -> Path:
    """Write a checkpoint with random weights of a size at which all inputs matter; return its folder."""
    import torch
    from safetensors.torch import save_file

    from sketch.network import Dimensions, Drawer, Reader

    torch.manual_seed(seed)
    networks = {"read": Reader(Dimensions()), "draw": Drawer(Dimensions())}
    weights = {f"{name}.{key}": value for name, each in networks.items() for key, value in each.state_dict().items()}
    for name, value in weights.items():
        if value.dim() > 1:
            value.normal_(0, (0.1 if "patch_out" in name else 0.8) * value.shape[-1] ** -0.5)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "sketch"}) + "\n")
    return folder


def read_checkpoint(model_path: str, network: str) -> tuple[Dimensions, dict[str, torch.Tensor]]:
    """Return the dimensions, and the weights of one network, ``read`` or ``draw``.

    Raises:
        ConfigError: a file is missing or of something else.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from sketch.network import Dimensions

    folder = Path(model_path)
    try:
        config = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        if config.pop("model_type") != "sketch":
            raise ValueError("model_type is not 'sketch'")
        dims = Dimensions(**config)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ConfigError(f"{folder} is no checkpoint of sketch: {error}") from error
    prefix = f"{network}."
    return dims, {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
