"""The choice of the requests that share the next pass of a vocoder, by their deadlines."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import define, field, frozen

from omni_torch.loop.step_cost import StepCost

SHORT_PASS, LONG_PASS = 0.05, 0.3
"""Seconds of a pass that may be shared: the shorter one where somebody would run out of sound meanwhile."""


def next_chunk(frames: int, initial_chunk: int, chunk: int, growth: float | None) -> int:
    """Return the frames of a request's chunk that follows ``frames``; see :class:`omni_torch.vocoder.scheduler.VocoderScheduler`."""
    if not frames:
        return initial_chunk
    return chunk if growth is None else min(chunk, max(initial_chunk, int(min(chunk, growth * frames))))


@frozen
class NextChunk:
    """The next chunk of a request.

    Attributes:
        moment: by when it is needed.
        frames: its length.
        is_here: they have come.
        is_heard: somebody listens to the request.
        may_wait: it may be held back for those that are heard.
    """

    moment: float
    frames: int
    is_here: bool
    is_heard: bool = False
    may_wait: bool = False


def _cost() -> StepCost:
    return StepCost(2)


@define
class Passes:
    """Chooses passes by deadlines. A state machine without IO.

    A pass is that of the order of arrival, with all that has a chunk, while the cost of passes predicts that those who are heard stay in
    time: the larger passes are, the less they cost, here and in the stages before, whose requests stay together. Otherwise the
    earliest deadlines come first, unless those that would be late are late in a pass of their own too.

    Attributes:
        max_running: requests in one pass; ``None``: any number.
    """

    max_running: int | None = None
    _cost: StepCost = field(factory=_cost)

    def computed(self, streams: int, frames: int, seconds: float) -> None:
        """Learn from a pass."""
        self._cost.observe([streams, frames], seconds)

    def choose(self, chunks: Mapping[str, NextChunk], now: float) -> tuple[list[str], float]:
        """Return the requests of the next pass, and when to look again if there are none because all are held back for others.

        ``chunks``: those that have come, in the order of their turns, and those that listeners wait for.
        """
        here = [name for name, each in chunks.items() if each.is_here and each.frames]
        by_deadline = sorted(here, key=lambda name: chunks[name].moment)
        is_too_large = self.max_running is not None and len(here) > self.max_running
        together = by_deadline[: self.max_running] if is_too_large else here
        if together and self._is_calm(together, chunks, now):
            return sorted(together, key=lambda name: chunks[name].moment), now
        chosen: list[str] = []
        latest, held_until = now, math.inf
        for name in by_deadline:
            each = chunks[name]
            end = self._end([*chosen, name], chunks, now)
            if chosen and (len(chosen) == self.max_running or end > latest):
                break
            if each.may_wait:
                if held_until == math.inf:
                    held_until = self._threatened([*chosen, name], chunks, end, now)
                if held_until < math.inf:
                    continue  # nor does one behind it begin
            if not chosen:
                latest = min(max(each.moment, now + SHORT_PASS), now + LONG_PASS)
            chosen.append(name)
        return chosen, held_until

    def _end(self, names: list[str], chunks: Mapping[str, NextChunk], now: float) -> float:
        """Return when a pass is over."""
        return now + self._cost.seconds(len(names), sum(chunks[name].frames for name in names))

    def _is_calm(self, together: list[str], chunks: Mapping[str, NextChunk], now: float) -> bool:
        """Return whether a pass of ``together`` makes nobody late who would be in time without it."""
        end = self._end(together, chunks, now)
        late = [name for name in together if chunks[name].is_heard and chunks[name].moment < end]
        if late:
            alone = self._end(late, chunks, now)
            if any(chunks[name].moment >= alone for name in late):
                return False
        return self._threatened(together, chunks, end, now) == math.inf

    @staticmethod
    def _is_waited_for(each: NextChunk, now: float) -> bool:
        """Return whether a listener can get it in time. One that is late because its frames have not come is not waited for."""
        return each.is_heard and each.frames > 0 and (each.is_here or each.moment > now)

    def _threatened(self, together: list[str], chunks: Mapping[str, NextChunk], end: float, now: float) -> float:
        """Return the first deadline that is missed if a pass of ``together``, which is over at ``end``, is next; infinity if passes in
        the order of their deadlines are in time for all others that are heard.
        """
        inside = set(together)
        others = [each for name, each in chunks.items() if name not in inside and self._is_waited_for(each, now)]
        frames = 0
        for streams, each in enumerate(sorted(others, key=lambda each: each.moment), 1):
            frames += each.frames
            if end + self._cost.seconds(streams, frames) > each.moment:
                return max(each.moment, now)
        return math.inf
