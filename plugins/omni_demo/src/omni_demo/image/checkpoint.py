"""The checkpoint: the dimensions in ``config.json``, and the weights of the three networks in one file, most of them as int8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cattrs
import torch
from attrs import asdict, frozen
from safetensors.torch import load_file, save_file

from omni_core.api import ConfigError, expanded
from omni_demo.image.networks import Autoencoder, Denoiser, Shape, TextEncoder
from omni_torch.api import checked_file, read_json

NETWORKS: dict[str, Any] = {"text": TextEncoder, "denoiser": Denoiser, "autoencoder": Autoencoder}
_SCALE = ".scale"


@frozen(eq=False)
class Networks:
    """The networks of a checkpoint, in float32."""

    shape: Shape
    text: TextEncoder
    denoiser: Denoiser
    autoencoder: Autoencoder


def write_checkpoint(folder: Path, networks: Networks) -> None:
    """Write a checkpoint. Rows of matrices and filters are int8 with a scale each; all else is float16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    for name in NETWORKS:
        for key, tensor in getattr(networks, name).state_dict().items():
            full = f"{name}.{key}"
            if tensor.ndim < 2 or key.endswith(("mean", "std")):
                tensors[full] = tensor.half()
                continue
            rows = tensor.flatten(1)
            scale = (rows.abs().amax(1) / 127).clamp(min=1e-8).half()
            tensors[full] = (rows / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8).view(tensor.shape)
            tensors[full + _SCALE] = scale
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(asdict(networks.shape), indent=2) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)


def read_checkpoint(model_path: str, *names: str) -> dict[str, Any]:
    """Return the networks of these names, for inference, and ``shape``.

    Raises:
        ConfigError: the checkpoint is missing, or another model's.
    """
    folder = expanded(model_path)
    try:
        shape = cattrs.Converter(forbid_extra_keys=True).structure(read_json(folder / "config.json"), Shape)
        stored = load_file(checked_file(folder / "model.safetensors"))
    except ConfigError as error:
        raise ConfigError(f"{folder}: no checkpoint of demo-image: {error}") from None
    except Exception as error:  # of JSON, cattrs and safetensors
        raise ConfigError(f"{folder}: no checkpoint of demo-image: {type(error).__name__}: {error}") from error
    found: dict[str, Any] = {"shape": shape}
    for name in names:
        network = NETWORKS[name](shape)
        own = {key.removeprefix(f"{name}."): value for key, value in stored.items() if key.startswith(f"{name}.")}
        try:
            network.load_state_dict({key: _read(own, key) for key in own if not key.endswith(_SCALE)})
        except RuntimeError as error:
            raise ConfigError(f"{folder / 'model.safetensors'}: {error}") from None
        found[name] = network.eval().requires_grad_(False)
    return found


def _read(stored: dict[str, torch.Tensor], key: str) -> torch.Tensor:
    tensor = stored[key].float()
    scale = stored.get(key + _SCALE)
    return tensor if scale is None else tensor * scale.float().view(-1, *[1] * (tensor.ndim - 1))
