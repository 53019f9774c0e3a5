"""Reads ``codec.pth``: dimensions from the tensors' shapes, weight normalisation folded, encoder or decoder alone."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from omni_core.api import ConfigError
from omni_fish_s2.codec.config import CodecConfig
from omni_torch.api import checked_file

FILE = "codec.pth"

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_NORMALISED = [
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    (".weight_g", ".weight_v"),
]
"""The two ways in which weight normalisation is stored: length and direction."""

_TRAINING_PREFIX = "generator."


class CodecFile:
    """Return the tensors of a codec file by name; nothing in it is executed.

    Raises:
        ConfigError: it is missing, damaged, or not a file of plain tensors.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = checked_file(Path(path))
        try:
            loaded = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise ConfigError(f"{self.path} cannot be read as a file of tensors: {error}") from error
        if isinstance(loaded, dict):
            loaded = loaded.get("state_dict", loaded)
        if not isinstance(loaded, dict) or not all(isinstance(each, torch.Tensor) for each in loaded.values()):
            raise ConfigError(f"{self.path} does not contain a dictionary of tensors")
        if any(name.startswith(_TRAINING_PREFIX) for name in loaded):
            loaded = {name.removeprefix(_TRAINING_PREFIX): t for name, t in loaded.items() if _TRAINING_PREFIX in name}
        self.tensors: dict[str, torch.Tensor] = loaded

    def sources(self, name: str) -> list[str]:
        """Return the stored tensors that make up a parameter: itself, or length and direction.

        Raises:
            ConfigError: neither is present.
        """
        if name in self.tensors:
            return [name]
        stem = name.removesuffix(".weight")
        for length, direction in _NORMALISED:
            if stem + direction in self.tensors and stem + length in self.tensors:
                return [stem + length, stem + direction]
        raise ConfigError(f"{self.path} lacks the tensor {name!r}")

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[self.sources(name)[-1]].shape)

    def read(self, name: str) -> torch.Tensor:
        """Return a parameter with its weight normalisation folded.

        Raises:
            ConfigError: it is missing, or not stored in floats.
        """
        parts = [self.tensors[source] for source in self.sources(name)]
        for source, tensor in zip(self.sources(name), parts, strict=True):
            if not tensor.is_floating_point():
                kind = str(tensor.dtype).removeprefix("torch.")
                raise ConfigError(
                    f"the tensor {source!r} of {self.path} is stored as {kind}, the network has floats there"
                )
        return parts[0] if len(parts) == 1 else torch._weight_norm(parts[1], parts[0], 0)

    def count(self, pattern: str) -> int:
        """Count the distinct numbers that the group of ``pattern`` matches."""
        found = (re.match(pattern, name) for name in self.tensors)
        return len({match.group(1) for match in found if match})

    @property
    def config(self) -> CodecConfig:
        """Return the codec's dimensions.

        Raises:
            ConfigError: a tensor that determines them is missing.
        """
        encoder_blocks = self.count(r"encoder\.block\.(\d+)\.block\.4\.")
        decoder_blocks = self.count(r"decoder\.model\.(\d+)\.block\.")
        rates = [self.shape(f"encoder.block.{n}.block.4.conv.weight")[-1] // 2 for n in range(1, encoder_blocks + 1)]
        upsampling = [
            self.shape(f"decoder.model.{n}.block.1.conv.weight")[-1] // 2 for n in range(1, decoder_blocks + 1)
        ]
        layers = [self.count(rf"encoder\.block\.{n}\.block\.5\.layers\.(\d+)\.") for n in range(1, encoder_blocks + 1)]
        factors = self.count(r"quantizer\.downsample\.(\d+)\.")
        semantic, residual = "quantizer.semantic_quantizer.quantizers.0", "quantizer.quantizer.quantizers.0"
        return CodecConfig(
            encoder_dim=self.shape("encoder.block.0.conv.weight")[0],
            encoder_rates=tuple(rates),
            encoder_layers=tuple(layers),
            latent=self.shape(f"encoder.block.{encoder_blocks + 2}.conv.weight")[0],
            decoder_dim=self.shape("decoder.model.0.conv.weight")[0],
            decoder_rates=tuple(upsampling),
            factors=tuple(self.shape(f"quantizer.downsample.{n}.0.conv.weight")[-1] for n in range(factors)),
            semantic_codebook=self.shape(f"{semantic}.codebook.weight")[0],
            residual_codebook=self.shape(f"{residual}.codebook.weight")[0],
            residuals=self.count(r"quantizer\.quantizer\.quantizers\.(\d+)\."),
            codebook_dim=self.shape(f"{semantic}.codebook.weight")[1],
            layers=self.count(r"quantizer\.post_module\.layers\.(\d+)\."),
            intermediate=self.shape("quantizer.post_module.layers.0.feed_forward.w1.weight")[0],
            convnext=self.shape("quantizer.upsample.0.1.pwconv1.weight")[0],
        )


def load_codec(
    network: Callable[[CodecConfig], ModuleT], file: CodecFile, *, dtype: torch.dtype, device: str | torch.device
) -> ModuleT:
    """Load the encoder or the decoder.

    Raises:
        ConfigError: a tensor is missing or has a wrong shape; the message names it with both shapes.
    """
    with torch.device("meta"):
        module = network(file.config)
    state = {}
    for name, expected in module.state_dict().items():
        tensor = file.read(name)
        if tensor.shape != expected.shape:
            raise ConfigError(
                f"the tensor {name!r} of {file.path} has shape {tuple(tensor.shape)}, "
                f"the others imply {tuple(expected.shape)}"
            )
        state[name] = tensor.to(device=device, dtype=dtype)
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)
