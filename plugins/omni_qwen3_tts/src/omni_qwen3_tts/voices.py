"""Makes voices of recordings: checked, encoded once, and cached by content."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from functools import partial

import torch
from attrs import evolve, frozen

from omni_core.api import ConfigError
from omni_media.api import Limits, MediaSource, sound
from omni_qwen3_tts.checkpoint import sources
from omni_qwen3_tts.codec.config import SAMPLE_RATE, read_codec
from omni_qwen3_tts.codec.encoder import load_encoder
from omni_qwen3_tts.config import TTSConfig
from omni_qwen3_tts.speaker_encoder import SpeakerEncoder, Spectrogram
from omni_torch.api import load_module, open_checkpoint

SHORTEST_SECONDS = 0.1
"""Of a recording. A voice needs some seconds to be known; this is what its networks need."""

SILENCE = 1e-4
"""The loudest sample of a recording in which nobody is heard: -80 dB."""


@frozen
class ReferenceLimits(Limits):
    """Bounds on a recording of a voice."""

    max_audio_seconds: float = 60.0
    max_file_mb: int = 64
    max_request_samples: int = 12_000_000

    def option(self, name: str) -> str:
        """Return what this pipeline calls a limit."""
        return {"max_audio_seconds": "max_reference_seconds", "max_file_mb": "max_reference_mb"}.get(name, name)


@frozen(eq=False)
class Recorded:
    """The voice of a recording: ``embedding [hidden]`` float32, ``codes [R, groups]`` int64."""

    embedding: torch.Tensor
    codes: torch.Tensor


class VoiceEncoder:
    """Encodes recordings. From any thread. A recording in the cache is not encoded again, whatever its file name.

    Args:
        kept: the number of recordings whose voices are cached; the least recently used is evicted first.

    Raises:
        ConfigError: the checkpoint has no speaker encoder, or its codec no encoder.
    """

    def __init__(
        self,
        model_path: str,
        config: TTSConfig,
        limits: ReferenceLimits,
        *,
        kept: int = 64,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        if config.speaker_encoder is None:
            raise ConfigError(f"{model_path}: this checkpoint speaks with no recorded voices")
        with torch.device("meta"):
            network = SpeakerEncoder(config.speaker_encoder)
        checkpoint, kind = open_checkpoint(model_path), getattr(torch, dtype)
        names = partial(sources, "speaker_encoder.")
        self._speaker = load_module(network, checkpoint, names, dtype=kind, device=device)
        self._codec = load_encoder(model_path, read_codec(model_path), dtype=dtype, device=device)
        self._spectrogram = Spectrogram(config.speaker_encoder, device)
        self._limits, self._kept, self._device, self._dtype = limits, kept, torch.device(device), kind
        self._voices: OrderedDict[bytes, Recorded] = OrderedDict()
        self._lock = threading.Lock()
        self.encoded = self.found = 0

    def voice(self, recording: MediaSource) -> Recorded:
        """Return what a recording sounds like.

        Raises:
            InvalidRequestError: the recording is invalid, too short, or silent; the message names it.
        """
        content = recording.content(self._limits)
        key = hashlib.blake2b(content, digest_size=32).digest()
        with self._lock:
            voice = self._voices.get(key)
            self.found += voice is not None
        if voice is None:
            if recording.part.get("samples") is None:  # what is cached is what was read
                recording = evolve(recording, part={**recording.part, "data": content})
            samples = sound(recording, SAMPLE_RATE, self._limits)
            if len(samples) < SHORTEST_SECONDS * SAMPLE_RATE:
                shortest = f"{1000 * SHORTEST_SECONDS:.0f} ms"
                raise recording.fail(
                    f"{1000 * len(samples) / SAMPLE_RATE:.0f} ms of sound; at least {shortest} are needed"
                )
            if abs(samples).max() < SILENCE:
                raise recording.fail("it is silent; a voice is needed")
            voice = self.encode(torch.from_numpy(samples))
        with self._lock:
            if key not in self._voices:
                self.encoded += 1
                self._voices[key] = voice
            self._voices.move_to_end(key)
            if len(self._voices) > self._kept:
                self._voices.popitem(last=False)
        return voice

    def clear(self) -> None:
        """Forget all voices."""
        with self._lock:
            self._voices.clear()

    @torch.inference_mode()
    def encode(self, samples: torch.Tensor) -> Recorded:
        """Encode mono samples at 24 kHz, ``[n]`` float32."""
        if self._device.type == "cuda":  # each thread has its own current device
            torch.cuda.set_device(self._device)
        here = samples.to(self._device)
        embedding: torch.Tensor = self._speaker(self._spectrogram(here)[None].to(self._dtype))[0]
        return Recorded(embedding.float().cpu(), self._codec(here.to(self._dtype)).cpu())
