"""The cuts of a long recording: at silences, into parts that are written down each by itself. Every sample is in one part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import soxr
from attrs import define, field, frozen

from omni_serve.encoders import Samples
from omni_serve.realtime.audio import INPUT_RATE
from omni_serve.realtime.vad import TurnDetector

QUIET_SECONDS = 0.1
"""Of the pieces that are compared where somebody speaks without a pause."""

SEARCH = 1 / 6
"""The part of the longest part, at its end, in which the quietest place is looked for."""


@frozen
class Part:
    """A part of a recording.

    Attributes:
        begin: samples of the recording before it.
        samples: mono float32.
        rate: in Hz.
        heard: where the first speech in it begins and the last ends, in seconds of the recording; all of it, where none is found.
    """

    begin: int
    samples: Samples
    rate: int
    heard: tuple[float, float]

    @property
    def start(self) -> float:
        """Its beginning, in seconds of the recording."""
        return self.begin / self.rate

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.samples) / self.rate


@define
class Cutter:
    """Cuts sound that is fed to it. Positions are samples of the recording.

    Attributes:
        turns: finds the speech.
        longest: seconds of a part.
        padding: seconds of the silence before speech that are in its part.
        by_turn: each turn is a part; otherwise a part has as many as go into it.
    """

    rate: int
    turns: TurnDetector
    longest: float
    padding: float = 0.3
    by_turn: bool = False
    _begin: int = 0
    _end: int = 0
    _held: list[Samples] = field(factory=list)
    _cuts: list[int] = field(factory=list)
    _speech: list[tuple[int, int]] = field(factory=list)
    _since: int | None = None
    _silent_from: int = 0
    _to_detector: soxr.ResampleStream | None = None

    def __attrs_post_init__(self) -> None:
        if self.rate != INPUT_RATE:
            self._to_detector = soxr.ResampleStream(self.rate, INPUT_RATE, 1, dtype="float32", quality="LQ")

    def feed(self, samples: Samples) -> list[Part]:
        """Take samples; return the parts that they complete."""
        self._held.append(samples)
        self._end += len(samples)
        self._listen(samples if self._to_detector is None else self._to_detector.resample_chunk(samples))
        return [*self._complete()]

    def finish(self) -> list[Part]:
        """Return the rest."""
        made = [*self._complete()]
        return [*made, self._part(self._end)] if self._end > self._begin else made

    def _listen(self, samples: Samples) -> None:
        for border in self.turns.feed(samples):
            at = border.at * self.rate // INPUT_RATE
            if border.kind == "started":
                self._cuts.append(min(self._end, max(self._silent_from, at - round(self.padding * self.rate))))
                self._since = at
            elif self._since is not None:
                self._silent_from = max(self._since, at - self.turns.silence_ms * self.rate // 1000)
                self._speech.append((self._since, self._silent_from))
                self._since = None

    def _complete(self) -> Iterator[Part]:
        most = max(1, round(self.longest * self.rate))
        while True:
            fitting = [each for each in self._cuts if self._begin < each <= self._begin + most]
            turn = next((each for each in fitting if self._has_turn(each)), None) if self.by_turn else None
            if turn is not None:
                yield self._part(turn)
            elif self._end - self._begin > most:
                yield self._part(fitting[-1] if fitting else self._quietest(most))
            else:
                return

    def _has_turn(self, end: int) -> bool:
        """Return whether a turn has ended between the last cut and ``end``: the silence before the first turn is no part."""
        return any(last <= end for _, last in self._speech)

    def _quietest(self, most: int) -> int:
        """Return the quietest place near the end of the longest part."""
        held = self._all()
        step = max(1, round(QUIET_SECONDS * self.rate))
        first = max(most - round(most * SEARCH), 1)
        places = range(first, max(most - step, first) + 1, step)
        levels = [float(np.dot(piece := held[at : at + step], piece)) for at in places]
        quietest = places[levels.index(min(levels))]
        return self._begin + min(quietest + step // 2, most)

    def _all(self) -> Samples:
        if len(self._held) > 1:
            self._held = [np.concatenate(self._held)]
        return self._held[0]

    def _part(self, end: int) -> Part:
        held, begin, rate = self._all(), self._begin, self.rate
        samples, self._held = held[: end - begin].copy(), [held[end - begin :].copy()]
        speech = [*self._speech, *([(self._since, end)] if self._since is not None else [])]
        inside = [(max(first, begin), min(last, end)) for first, last in speech if first < end and last > begin]
        heard = (inside[0][0], inside[-1][1]) if inside else (begin, end)
        self._begin = end
        self._cuts = [each for each in self._cuts if each > end]
        self._speech = [each for each in self._speech if each[1] > end]
        return Part(begin, samples, rate, (heard[0] / rate, heard[1] / rate))


def cut(pieces: Iterable[tuple[Samples, int]], turns: TurnDetector, **given: float) -> Iterator[Part]:
    """Yield the parts of a recording. Args: as of :class:`Cutter`; ``pieces``: its samples, with their rate in Hz."""
    cutter: Cutter | None = None
    waiting, count = list[Samples](), 0
    for samples, rate in pieces:
        cutter = cutter or Cutter(rate, turns, **given)  # type: ignore[arg-type]
        waiting.append(samples)
        count += len(samples)
        if count >= rate:  # a second at once: a frame of a file may have 20 ms
            yield from cutter.feed(np.concatenate(waiting))
            waiting, count = [], 0
    if cutter is not None:
        yield from cutter.feed(np.concatenate(waiting)) if waiting else ()
        yield from cutter.finish()
