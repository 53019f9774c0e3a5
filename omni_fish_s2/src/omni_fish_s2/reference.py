"""Reads reference voices: recordings of any rate and channel count, checked, encoded, and cached by content."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

import torch
from attrs import evolve, frozen

from omni_fish_s2.codec import SAMPLE_RATE
from omni_fish_s2.codec.memory import Memory, StreamState
from omni_fish_s2.codec.networks import CodecEncoder
from omni_fish_s2.codec.weights import CodecFile, load_codec
from omni_media.api import Limits, MediaSource, sound

CHUNK_FRAMES = 64
"""The number of frames encoded in one pass. The networks are causal, so the size does not change the result; it bounds
memory.
"""


@frozen
class ReferenceLimits(Limits):
    """Bounds on each reference voice of a request."""

    max_audio_seconds: float = 60.0
    max_file_mb: int = 64
    max_request_samples: int = 24_000_000

    def option(self, name: str) -> str:
        """Return what this pipeline calls a limit."""
        return {"max_audio_seconds": "max_reference_seconds", "max_file_mb": "max_reference_mb"}.get(name, name)


class VoiceEncoder:
    """Encodes recordings to frames of codes. A recording in the cache is not encoded again, whatever its file name.

    Args:
        kept: the number of recordings whose codes are cached; the least recently used is evicted first.
    """

    def __init__(
        self, file: CodecFile, limits: ReferenceLimits, *, kept: int = 64, device: str = "cpu", dtype: str = "float32"
    ) -> None:
        self._network = load_codec(CodecEncoder, file, dtype=getattr(torch, dtype), device=device)
        self._samples_per_frame = file.config.samples_per_frame
        self._limits, self._kept, self._device, self._dtype = limits, kept, device, getattr(torch, dtype)
        self._codes: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._lock = threading.Lock()
        self.encoded = self.found = 0

    def codes(self, recording: MediaSource) -> torch.Tensor:
        """Return ``[frames, codebooks]`` int64; the last frame may end in silence.

        Raises:
            InvalidRequestError: the recording is invalid; the message names it.
        """
        content = recording.content(self._limits)
        key = hashlib.blake2b(content, digest_size=32).digest()
        codes = self._codes.get(key)
        if codes is None:
            if recording.part.get("samples") is None:  # what is cached is what was read
                recording = evolve(recording, part={**recording.part, "data": content})
            samples = sound(recording, SAMPLE_RATE, self._limits)
            if len(samples) < self._samples_per_frame:
                shortest = 1000 * self._samples_per_frame / SAMPLE_RATE
                raise recording.fail(
                    f"{1000 * len(samples) / SAMPLE_RATE:.0f} ms of sound; at least {shortest:.0f} ms are needed"
                )
            codes = self.encode(torch.from_numpy(samples))
            self.encoded += 1
        else:
            self.found += 1
        with self._lock:
            self._codes[key] = codes
            self._codes.move_to_end(key)
            if len(self._codes) > self._kept:
                self._codes.popitem(last=False)
        return codes

    def clear(self) -> None:
        """Forget all codes. From any thread."""
        with self._lock:
            self._codes.clear()

    @torch.inference_mode()
    def encode(self, samples: torch.Tensor) -> torch.Tensor:
        """Encode mono samples at 44.1 kHz, ``[n]`` float32, to ``[ceil(n / samples_per_frame), codebooks]`` int64."""
        padded = torch.nn.functional.pad(samples, (0, -len(samples) % self._samples_per_frame))
        state, pieces = StreamState(), []
        for chunk in padded.to(self._device, self._dtype).split(CHUNK_FRAMES * self._samples_per_frame):
            memory = Memory([state])
            pieces.append(self._network(chunk.unsqueeze(0), memory)[0].T)
            memory.save()
        return torch.cat(pieces).cpu()
