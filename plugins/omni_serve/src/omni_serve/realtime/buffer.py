"""The input buffer: the sound that a client has sent and that belongs to no turn yet, by its position in the session."""

from __future__ import annotations

import numpy as np
from attrs import define, field

from omni_serve.encoders import Samples


@define
class InputBuffer:
    """Samples from ``start`` to ``end``, counted since the beginning of the session."""

    start: int = 0
    end: int = 0
    _pieces: list[Samples] = field(factory=list, repr=False)

    def __len__(self) -> int:
        return self.end - self.start

    def add(self, samples: Samples) -> None:
        """Add samples at the end."""
        if len(samples):
            self._pieces.append(samples)
            self.end += len(samples)

    def between(self, start: int, until: int) -> Samples:
        """Return the samples from ``start`` to ``until``, which stay."""
        found, at = [], self.end
        for piece in reversed(self._pieces):
            if at <= start:
                break
            at -= len(piece)
            found.append(piece[max(start - at, 0) : max(until - at, 0)])
        return np.concatenate(found[::-1]) if found else np.zeros(0, np.float32)

    def take(self, until: int | None = None) -> Samples:
        """Remove and return the samples before ``until``, by default all."""
        until = self.end if until is None else min(max(until, self.start), self.end)
        found, left = [], until - self.start
        while left:
            piece = self._pieces[0]
            if len(piece) <= left:
                found.append(self._pieces.pop(0))
            else:
                found.append(piece[:left])
                self._pieces[0] = piece[left:]
            left -= len(found[-1])
        self.start = until
        return np.concatenate(found) if found else np.zeros(0, np.float32)

    def drop(self, until: int) -> None:
        """Remove the samples before ``until``."""
        if until > self.start:
            self.take(until)
