"""The last seconds of a sound that is still coming: its samples, and where it is silent."""

from __future__ import annotations

import numpy as np

from omni_media.api import Samples

PIECE = 0.1
"""Seconds of the pieces whose loudness is compared."""

SILENT = 0.002
"""Below this root mean square, -54 dB of full scale, a piece is silent."""


class LiveBuffer:
    """The samples of a sound from one place on. Places are counted in samples from the beginning of the sound.

    Args:
        rate: in Hz.

    Attributes:
        heard: samples that have come.
    """

    def __init__(self, rate: int) -> None:
        self.heard = 0
        self._piece = round(PIECE * rate)
        self._begin = self._first = 0
        self._parts: list[Samples] = []
        self._levels: list[float] = []
        self._rest: Samples = np.zeros(0, np.float32)

    def add(self, samples: Samples) -> None:
        """Take samples, float32 ``[n]``. What they are cut into changes nothing."""
        if not len(samples):
            return
        self.heard += len(samples)
        self._parts.append(samples)
        whole = np.concatenate([self._rest, samples])
        count = len(whole) // self._piece
        pieces = whole[: count * self._piece].reshape(count, self._piece)
        self._levels += np.sqrt(np.square(pieces, dtype=np.float64).mean(axis=1)).tolist()
        self._rest = whole[count * self._piece :]

    def finish(self) -> None:
        """Take note that nothing follows: the last piece may be short."""
        if len(self._rest):
            self._levels.append(float(np.sqrt(np.square(self._rest, dtype=np.float64).mean())))

    def forget(self, before: int) -> None:
        """Drop the samples before a place."""
        while self._parts and self._begin < before:
            dropped = min(before - self._begin, len(self._parts[0]))
            self._begin += dropped
            self._parts[0] = self._parts[0][dropped:]
            if not len(self._parts[0]):
                self._parts.pop(0)
        first = before // self._piece
        del self._levels[: first - self._first]
        self._first = first

    def samples(self, begin: int, end: int) -> Samples:
        """Return samples that were not dropped."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0][begin - self._begin : end - self._begin].copy()

    def is_silent(self, begin: int, end: int) -> bool:
        """Return whether the pieces between two places are silent. One at ``end`` counts when it is whole, or the sound has ended there."""
        last = len(self._levels) if end == self.heard else end // self._piece - self._first
        return all(each < SILENT for each in self._levels[begin // self._piece - self._first : last])

    def quiet_place(self, begin: int, end: int) -> int:
        """Return the middle of the longest silence between two places, or of the quietest piece where there is none."""
        first = -(-begin // self._piece)
        levels = self._levels[first - self._first : max(first + 1, end // self._piece) - self._first]
        limit = max(min(levels), SILENT)
        best, run = (0, 0), 0
        for number, level in enumerate(levels):
            run = run + 1 if level <= limit else 0
            best = max(best, (run, number + 1))
        length, stop = best
        return min(max((first + stop) * self._piece - length * self._piece // 2, begin), end)
