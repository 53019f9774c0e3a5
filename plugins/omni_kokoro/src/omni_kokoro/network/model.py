"""The whole network, and its weights from the published files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from omni_core.api import ConfigError
from omni_kokoro.config import KokoroConfig, read_config
from omni_kokoro.network.albert import Albert
from omni_kokoro.network.decoder import Decoder
from omni_kokoro.network.prosody import Predictor, TextEncoder
from omni_kokoro.network.source import Noise
from omni_kokoro.sentence import Sentence, Spoken
from omni_torch.api import checked_file, load_checked


class Kokoro(nn.Module):
    """Phonemes and voices to sound. Modules have the names of the published tensors."""

    def __init__(self, config: KokoroConfig) -> None:
        super().__init__()
        self.bert = Albert(config)
        self.bert_encoder = nn.Linear(config.bert_hidden, config.hidden)
        self.predictor = Predictor(config)
        self.text_encoder = TextEncoder(config)
        self.decoder = Decoder(config)
        self._half = config.style

    @torch.inference_mode()
    def speak(self, sentences: list[Sentence]) -> list[Spoken]:
        """Return the sound of sentences, of any requests, computed together; each sounds as it does alone."""
        device = self.bert_encoder.weight.device
        read, pitches, loudness, durations = [], [], [], []
        styles = torch.stack([torch.from_numpy(each.style) for each in sentences]).to(device)
        for sentence, style in zip(sentences, styles[:, self._half :], strict=True):
            ids = torch.tensor([0, *sentence.ids, 0], device=device)
            found, features = self.predictor.durations(self.bert_encoder(self.bert(ids)), style, sentence.speed)
            pitch, loud = self.predictor.curves(features.repeat_interleave(found, 0), style)
            read.append(self.text_encoder(ids).repeat_interleave(found, 1))
            pitches.append(pitch)
            loudness.append(loud)
            durations.append(found.numpy(force=True))
        noises = [Noise(each.seed) for each in sentences]
        sounds = self.decoder(read, pitches, loudness, styles[:, : self._half], noises)
        return [Spoken(_samples(sound), frames) for sound, frames in zip(sounds, durations, strict=True)]


def _samples(sound: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    found: np.ndarray[Any, np.dtype[np.float32]] = sound.float().clamp(-1.0, 1.0).numpy(force=True)
    return found


def load_network(folder: str | Path, file: str, device: str = "cpu") -> Kokoro:
    """Load a network for inference.

    Args:
        folder: holds ``config.json``.
        file: in it, a ``.pth`` of tensors or a ``.safetensors``.

    Raises:
        ConfigError: they cannot be read, or do not belong together; the message names the first tensor at fault.
    """
    path = Path(folder) / file
    with torch.device("meta"):
        network = Kokoro(read_config(folder))
    tensors = folded(stored(path))
    wanted = dict(network.named_parameters())
    for name, empty in wanted.items():
        if name not in tensors and ".norm." in name:
            tensors[name] = (torch.ones if name.endswith("weight") else torch.zeros)(empty.shape)
        elif name not in tensors:
            raise ConfigError(f"{path}: has no {name}; is it a Kokoro's?")
        elif tensors[name].shape != empty.shape:
            raise ConfigError(
                f"{path}: {name} has the shape {list(tensors[name].shape)}, by config.json it is {list(empty.shape)}"
            )
    network.load_state_dict({name: tensors[name].float() for name in wanted}, assign=True)
    return network.requires_grad_(False).to(device).eval()


def stored(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by their published names. Nothing in it is executed.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    checked_file(path)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        found: Any = load_checked(str(path), lambda: load_file(path))
    else:
        found = load_checked(str(path), lambda: torch.load(path, map_location="cpu", weights_only=True, mmap=True))
    if isinstance(found, dict) and all(isinstance(each, dict) for each in found.values()):
        found = {f"{part}.{name}": each for part, tensors in found.items() for name, each in tensors.items()}
    if not isinstance(found, dict) or not all(isinstance(each, torch.Tensor) for each in found.values()):
        raise ConfigError(f"{path}: holds no dictionary of tensors")
    return {name.replace(".module.", ".", 1): each for name, each in found.items()}


def folded(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors with their weight normalisation multiplied out, in either of the ways in which it is stored."""
    found = dict(tensors)
    for length, direction in (
        (".weight_g", ".weight_v"),
        (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    ):
        for name in [each for each in tensors if each.endswith(direction)]:
            stem = name.removesuffix(direction)
            weight, scale = found.pop(name), found.pop(stem + length)
            found[f"{stem}.weight"] = torch._weight_norm(weight, scale, 0)
    return found
