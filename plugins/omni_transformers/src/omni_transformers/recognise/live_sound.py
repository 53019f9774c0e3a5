"""Sound that comes chunk by chunk: checked, and resampled to the same samples for every cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import soxr

from omni_core.api import AudioChunk, InvalidRequestError, RequestTooLargeError
from omni_media.api import Samples

LOUDEST = 2.0**15
"""The largest sample that is read, as of recordings."""

RATES = (2_000, 384_000)
"""The lowest and the highest rate of a chunk, in Hz."""


class LiveSound:
    """The sound of one request at the rate of a model: the samples that :func:`omni_media.api.sound` makes of the whole.

    Args:
        rate: of what it returns, in Hz.
        seconds: the longest sound; ``None``: it may go on for ever.

    Attributes:
        heard: samples that it has returned.
    """

    def __init__(self, rate: int, seconds: float | None = None) -> None:
        self.heard = 0
        self._rate, self._seconds = rate, seconds
        self._own, self._taken = 0, 0
        self._stream: Any = None

    def add(self, chunk: Any) -> Samples:
        """Return the samples that are ready, float32 ``[n]``.

        Args:
            chunk: an :class:`AudioChunk` of any length.

        Raises:
            InvalidRequestError: it is none, or not mono, not finite, too loud or of another rate than those before;
                RequestTooLargeError: the sound is longer than ``seconds``.
        """
        if not isinstance(chunk, AudioChunk):
            raise InvalidRequestError(f"the input is sound: send AudioChunk, not {type(chunk).__name__}")
        samples = self._checked(chunk)
        self._taken += len(samples)
        if self._seconds is not None and self._taken > self._seconds * self._own:
            raise RequestTooLargeError(
                f"the sound is longer than {self._seconds:g} s (max_audio_seconds): end the request, and begin another"
            )
        return self._counted(samples if self._stream is None else self._stream.resample_chunk(samples))

    def finish(self) -> Samples:
        """Return the samples that the filter still holds.

        Raises:
            InvalidRequestError: no sound has come.
        """
        if not self._taken:
            raise InvalidRequestError("the input has ended and there is no sound in it: 0 samples")
        rest: Samples = np.zeros(0, np.float32)
        return rest if self._stream is None else self._counted(self._stream.resample_chunk(rest, last=True))

    def _checked(self, chunk: AudioChunk) -> Samples:
        rate, samples = chunk.sample_rate, np.asarray(chunk.samples)
        if isinstance(rate, bool) or not isinstance(rate, int) or not RATES[0] <= rate <= RATES[1]:
            raise InvalidRequestError(f"sample_rate of a chunk: must be from {RATES[0]} to {RATES[1]} Hz, is {rate!r}")
        if samples.ndim != 1 or samples.dtype.kind != "f":
            shape = list(samples.shape)
            raise InvalidRequestError(
                f"samples of a chunk: must be float [n], one channel, are {samples.dtype} {shape}"
            )
        if not self._own:
            self._own = rate
            if rate != self._rate:
                self._stream = soxr.ResampleStream(rate, self._rate, 1, dtype="float32", quality="HQ")
        if rate != self._own:
            raise InvalidRequestError(
                f"sample_rate of a chunk: {rate} Hz after {self._own} Hz; one request has one rate"
            )
        with np.errstate(over="ignore"):  # it becomes infinite
            samples = np.ascontiguousarray(samples, np.float32)
        wrong = ~(np.abs(samples) <= LOUDEST)  # NaN too
        if wrong.any():
            at, value = (self._taken + int(wrong.argmax())) / rate, samples[wrong][0]
            raise InvalidRequestError(
                f"the sample at {at:.3f} s is {value:g}; samples must be from -1 to 1, and are read up to {LOUDEST:g}"
            )
        return samples

    def _counted(self, samples: Samples) -> Samples:
        self.heard += len(samples)
        return samples
