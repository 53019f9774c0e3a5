"""The text of a sound that is still coming, by windows that overlap: what two hypotheses in a row agree on is final.

This is LocalAgreement-2 of Macháček, Dabre and Bojar, "Turning Whisper into Real-Time Transcription System" (IJCNLP-AACL 2023 System
Demonstrations, arXiv:2307.14743), on words. A hypothesis is made at each multiple of a step of the sound's own clock, so the text does not
depend on how the sound is cut into chunks. A recogniser that is late leaves out hypotheses, never sound: the next one is that of the newest
multiple. This is a state machine: hypotheses in, text and the next window out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from attrs import define, evolve, field, frozen

from omni_core.api import Segment, TranscriptChunk, Word
from omni_media.api import Samples
from omni_transformers.recognise.hypotheses import Hypothesis, Part, place_behind
from omni_transformers.recognise.live_buffer import LiveBuffer
from omni_transformers.recognise.text import in_order

MARKS = ".,;:?!…。，、？！"
"""Punctuation at the end of final words, which later words may show to be wrong."""

MARGIN = 0.3
"""Seconds of a silence that belong to the window after it."""


@frozen
class Window:
    """A part of the sound that is to be written down.

    Attributes:
        begin, end: in samples from the beginning of the sound.
        closes: all its words become final, because a silence follows or the sound has ended.
        is_long: its beginning is to move forward, for which its times are of use.
    """

    begin: int
    end: int
    closes: bool
    is_long: bool


@define
class Agreement:
    """The state of one sound.

    Attributes:
        rate: in Hz.
        step: samples between two hypotheses.
        most: samples of the longest window. From half of it on, its beginning moves forward.
        behind: samples that may wait before hypotheses are left out: with 0, each that is not the last one that is due; infinity: none.
        times: those that are told: ``none``, ``segment`` or ``word``.
        text, segments, words: what is final.
    """

    rate: int
    step: int
    most: int
    behind: float = math.inf
    times: str = "none"
    text: str = ""
    segments: list[Segment] = field(factory=list)
    words: list[Word] = field(factory=list)
    _sound: LiveBuffer = field(init=False)
    _begin: int = 0  # of the window
    _last: int = 0  # end of its last hypothesis, or of the silence that needed none
    _cut: int | None = None  # where it is divided next
    _is_open: bool = False  # it has a hypothesis
    _latest: Hypothesis = field(factory=Hypothesis)
    _said: list[str] = field(factory=list)  # its final words
    _left: list[str] = field(factory=list)  # those behind them, the last ones of the latest hypothesis
    _ended: bool = False

    def __attrs_post_init__(self) -> None:
        self._sound = LiveBuffer(self.rate)

    @property
    def heard(self) -> int:
        """Samples that have come."""
        return self._sound.heard

    @property
    def is_full(self) -> bool:
        """True if there is sound for the longest window and a step: more can wait."""
        return self.heard >= self._begin + self.most + self.step

    @property
    def said(self) -> str:
        """The final text of the window, without the marks at its end: the sentence may go on."""
        return "".join(self._said).rstrip(MARKS)

    @property
    def before(self) -> str:
        """The final text before the window."""
        return self.text[: max(0, len(self.text) - len("".join(self._said)))]

    def hear(self, samples: Samples) -> None:
        """Take what follows in the sound, float32 ``[n]``."""
        self._sound.add(samples)

    def end(self) -> None:
        """Take note that the sound has ended."""
        self._sound.finish()
        self._ended = True

    def samples(self, window: Window) -> Samples:
        """Return the sound of a window that is due."""
        return self._sound.samples(window.begin, window.end)

    def due(self) -> Window | None:
        """Return the window that is to be written down now; ``None``: more sound must come first, or none will."""
        if self._cut is not None:
            return Window(self._begin, self._cut, closes=True, is_long=True)
        while (end := self._next_end()) is not None or self._is_left():
            is_last, end = end is None, end or self.heard
            silent = self._sound.is_silent(self._last, end)
            if not silent or self._is_open:
                return Window(self._begin, end, silent or is_last, end - self._begin >= self.most // 2)
            self._last = end
            self._move(max(self._begin, end - round(MARGIN * self.rate)))
        return None

    def take(self, window: Window, found: Hypothesis) -> TranscriptChunk | None:
        """Take what was written of the window that is due; return what is new by it."""
        known, tentative = (len(self.text), len(self.segments), len(self.words)), self._tentative
        (self._agree if self._cut is None else self._divide)(window, found)
        return self._since(*known, tentative)

    def finish(self) -> TranscriptChunk | None:
        """End the text, when nothing is due: the words of the last hypothesis are final. Return what is new by it."""
        known, tentative = (len(self.text), len(self.segments), len(self.words)), self._tentative
        self._close(self.heard)
        return self._since(*known, tentative)

    def _next_end(self) -> int | None:
        end = (self._last // self.step + 1) * self.step
        if self.heard - end > self.behind:
            end = self.heard // self.step * self.step
        end = min(end, self._begin + self.most)
        return end if end <= self.heard else None

    def _is_left(self) -> bool:
        """Return whether the sound has ended, and what is left of it must be written down."""
        return self._ended and (self._last < self.heard or bool(self._left))

    def _agree(self, window: Window, found: Hypothesis) -> None:
        """Compare a hypothesis with the one before it."""
        known, _ = place_behind(self._said, found.pieces)
        left, full = found.pieces[known:], window.end - window.begin == self.most
        was_empty, last = self._is_open and not self._said and not self._left, self._last
        count = 0 if found.is_cut else _agreed(self._left, left)  # what a limit has cut repeats itself
        if full and len(found.parts) > 1:  # no later hypothesis can hold all of it
            count = max(count, found.parts[-2].count - known)
        self._latest, self._left, self._last, self._is_open = found, left, window.end, True
        self._say(count, window.end)
        if window.closes:
            self._close(window.end)
        elif was_empty and not found.pieces:
            self._move(last)
        elif window.is_long and not self._shorten(window) and (full or not (found.words or len(found.parts) > 1)):
            third = (window.end - window.begin) // 3
            self._cut = self._sound.quiet_place(window.begin + third, window.end - min(self.step, third))

    def _divide(self, window: Window, found: Hypothesis) -> None:
        """Take what was written of the window up to the cut. Its last words may be said, or be those that are."""
        place, edits = place_behind(self._said, found.pieces)
        count, others = place_behind(found.pieces, self._said)
        count, rest = (len(self._said), found.pieces[place:]) if edits <= others else (count, [])
        latest, left = self._latest, self._left[place_behind(rest, self._left)[0] :]
        after, self._said = self._said[count:], self._said[:count]
        self._latest, self._left = found, rest
        self._say(len(rest), window.end)
        self._tell(found.parts, window.end, whole=True)
        self._latest, self._said, self._left, self._cut = latest, after, left, None
        self._move(window.end)

    def _say(self, count: int, end: int) -> None:
        """Make the next words final."""
        first = len(self._latest.pieces) - len(self._left)
        if self.times == "word":
            self.words += in_order(self._latest.between(first, first + count), end / self.rate, self.words)
        self.text = self._joined(self._left[:count])
        self._said, self._left = self._said + self._left[:count], self._left[count:]

    def _tell(self, parts: Sequence[Part], end: int, whole: bool) -> None:
        """Take the final words of segments out of the window; of a ``whole`` one, all."""
        found, first = list[Segment](), len(self._latest.pieces) - len(self._left) - len(self._said)
        if whole and not parts:
            parts = [Part(0, Segment("", self._begin / self.rate, end / self.rate))]
        done = 0
        for each in parts:
            count = min(max(each.count - first, done), len(self._said))
            if whole and each is parts[-1]:
                count = len(self._said)
            if text := "".join(self._said[done:count]):
                ids = each.segment.token_ids if text.strip() == each.segment.text.strip() else []
                found.append(evolve(each.segment, text=text, token_ids=ids))
            done = count
        self._said = self._said[done:]
        if self.times != "none":
            self.segments += in_order(found, end / self.rate, self.segments)

    def _shorten(self, window: Window) -> bool:
        """Move the beginning behind the last segment that is final, or into the longest pause between final words. False: there is none."""
        found, known = self._latest, len(self._latest.pieces) - len(self._left)
        parts = [each for each in found.parts[:-1] if each.count <= known]
        if parts:
            place = parts[-1].segment.end
        else:
            third = (2 * window.begin + window.end) / 3 / self.rate
            pairs = [each for each in pairwise(found.between(0, known)) if each[0].end >= third]
            if not pairs:
                return False
            one, other = max(pairs, key=lambda pair: pair[1].start - pair[0].end)
            place = (one.end + other.start) / 2
            parts = [Part(found.behind(one), Segment("", found.words[0].start, one.end))]
        if not window.begin < round(place * self.rate) < window.end:
            return False
        self._tell(parts, window.end, whole=False)
        self._move(round(place * self.rate))
        return True

    def _close(self, end: int) -> None:
        """Make all words of the window final, and begin another."""
        self._say(len(self._left), end)
        if self._said:
            self._tell(self._latest.parts, end, whole=True)
        self._latest, self._is_open = Hypothesis(), False
        self._move(max(self._begin, end - round(MARGIN * self.rate)))

    def _move(self, begin: int) -> None:
        self._begin = begin
        self._sound.forget(begin)

    def _since(self, text: int, segments: int, words: int, tentative: str) -> TranscriptChunk | None:
        told = TranscriptChunk(self.text[text:], self._tentative, self.segments[segments:], self.words[words:])
        return told if told.text or told.segments or told.words or told.tentative != tentative else None

    @property
    def _tentative(self) -> str:
        return self._joined(self._left)[len(self.text) :]

    def _joined(self, pieces: Sequence[str]) -> str:
        more = "".join(pieces)
        return self.text + more if self.text else more.lstrip()


def _agreed(before: Sequence[str], now: Sequence[str]) -> int:
    """Return how many words at the beginning are the same."""
    pairs = enumerate(zip(before, now, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(before), len(now)))
