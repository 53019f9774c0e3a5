"""Reads reference voices: recordings of any rate and channel count, checked, encoded, and cached by content."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import soxr
import torch
from attrs import frozen

from omni_core.api import InvalidRequestError, RequestTooLargeError
from omni_fish_s2.codec import SAMPLE_RATE
from omni_fish_s2.codec.memory import Memory, StreamState
from omni_fish_s2.codec.networks import CodecEncoder
from omni_fish_s2.codec.weights import CodecFile, load_codec

Samples = npt.NDArray[np.float32]

CHUNK_FRAMES = 64
"""The number of frames encoded in one pass. The networks are causal, so the size does not change the result; it bounds
memory.
"""


@frozen
class ReferenceLimits:
    """Bounds on each reference voice of a request. ``max_file_mb`` is in MiB; ``max_samples`` counts every channel."""

    max_seconds: float = 60.0
    max_file_mb: int = 64
    max_samples: int = 24_000_000


@frozen
class Recording:
    """One recording of a request: ``part`` holds ``path``, ``data`` (bytes of a file), or ``samples`` and ``sample_rate``."""

    part: dict[str, Any]
    where: str

    def fail(self, problem: str) -> InvalidRequestError:
        path = self.part.get("path")
        title = f"{self.where} (recording {str(path)!r})" if path else f"{self.where} (recording)"
        return InvalidRequestError(f"{title}: {problem}")

    def too_large(self, problem: str) -> RequestTooLargeError:
        """Return the error for this recording being over a limit."""
        return RequestTooLargeError(str(self.fail(problem)))

    def content(self, limits: ReferenceLimits) -> bytes:
        """Return the bytes that identify the recording: of the file, or of the samples with their rate and channels.

        Raises:
            InvalidRequestError: it is missing, or larger than the limits.
        """
        if self.part.get("samples") is not None:
            samples, rate = self._samples()
            if len(samples) > limits.max_seconds * rate:
                raise self._too_long(limits, len(samples) / rate)
            return f"{rate} {samples.shape} ".encode() + samples.tobytes()
        data = self.part.get("data")
        if data is None:
            data = self._read(limits)
        if not isinstance(data, bytes):
            raise self.fail(f"`data` must be bytes, is {type(data).__name__}")
        if len(data) > limits.max_file_mb * 2**20:
            raise self._too_large(limits, len(data))
        return data

    def decode(self, content: bytes, limits: ReferenceLimits) -> Samples:
        """Return mono samples at 44.1 kHz, checked.

        Raises:
            InvalidRequestError: not audio, damaged, too long, too short, or not finite.
        """
        samples, rate = self._samples() if self.part.get("samples") is not None else self._decode(content, limits)
        if len(samples) > limits.max_seconds * rate:
            raise self._too_long(limits, len(samples) / rate)
        if not np.isfinite(samples).all():
            raise self.fail("it holds NaN or infinite samples")
        mono = _averaged(samples)
        if rate != SAMPLE_RATE:
            mono = soxr.resample(mono, rate, SAMPLE_RATE, quality="HQ")
        return np.ascontiguousarray(mono, dtype=np.float32)

    def _samples(self) -> tuple[Samples, int]:
        rate = self.part.get("sample_rate")
        if isinstance(rate, bool) or not isinstance(rate, int) or rate <= 0:
            raise self.fail("`samples` need a `sample_rate` in Hz")
        samples = np.asarray(self.part["samples"], dtype=np.float32)
        if samples.ndim not in (1, 2):
            raise self.fail(f"`samples` must be [n] or [n, channels], have shape {list(samples.shape)}")
        return samples, rate

    def _read(self, limits: ReferenceLimits) -> bytes:
        path = self.part.get("path")
        if not isinstance(path, str | Path):
            raise self.fail("needs `path` (a file), `data` (bytes) or `samples`")
        try:
            with Path(path).open("rb") as file:
                data = file.read(limits.max_file_mb * 2**20 + 1)
        except OSError as error:
            raise self.fail(f"cannot be opened: {error.strerror}") from error
        if len(data) > limits.max_file_mb * 2**20:
            raise self._too_large(limits, Path(path).stat().st_size)
        return data

    def _decode(self, content: bytes, limits: ReferenceLimits) -> tuple[Samples, int]:
        try:
            with soundfile.SoundFile(io.BytesIO(content)) as file:
                # Check the header's length before decoding anything. The header of a truncated file is wrong, so check
                # the decoded length too.
                if file.frames > limits.max_seconds * file.samplerate:
                    raise self._too_long(limits, file.frames / file.samplerate)
                if file.frames * file.channels > limits.max_samples:
                    raise self.too_large(
                        f"{file.frames * file.channels} samples of {file.channels} channels are over the limit of "
                        f"{limits.max_samples}; send one channel at {SAMPLE_RATE} Hz"
                    )
                expected, rate = file.frames, file.samplerate
                # One channel is kept of each block: a file of many channels is small where they are silent.
                blocks = [_averaged(each) for each in file.blocks(2**18, dtype="float32", always_2d=True)]
                samples = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
        except soundfile.LibsndfileError as error:
            raise self.fail(f"not an audio file, or damaged: {error.error_string}") from error
        if len(samples) < expected:
            raise self.fail(f"it is truncated: {len(samples)} of {expected} samples are present")
        return samples, rate

    def _too_long(self, limits: ReferenceLimits, seconds: float) -> InvalidRequestError:
        return self.too_large(
            f"{seconds:.1f} s are over the limit of {limits.max_seconds:g} s (max_reference_seconds); "
            "ten to thirty seconds of clear speech say most about a voice"
        )

    def _too_large(self, limits: ReferenceLimits, size: int) -> InvalidRequestError:
        return self.too_large(
            f"{size / 2**20:.0f} MiB are over the limit of {limits.max_file_mb} MiB (max_reference_mb)"
        )


def _averaged(samples: Samples) -> Samples:
    return samples.mean(axis=1, dtype=np.float32) if samples.ndim == 2 else samples


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

    def codes(self, recording: Recording) -> torch.Tensor:
        """Return ``[frames, codebooks]`` int64; the last frame may end in silence.

        Raises:
            InvalidRequestError: the recording is invalid; the message names it.
        """
        content = recording.content(self._limits)
        key = hashlib.blake2b(content, digest_size=32).digest()
        codes = self._codes.get(key)
        if codes is None:
            samples = recording.decode(content, self._limits)
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
