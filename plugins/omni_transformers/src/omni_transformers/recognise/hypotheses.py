"""Texts that a recogniser has written of one window: their words, and where one goes on behind another."""

from __future__ import annotations

import re
import string
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from attrs import define, evolve, field

from omni_core.api import Segment, Transcript, Word

_ALONE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Characters of languages that put no spaces between words: each is compared as one."""

_PIECES = re.compile(rf"\s*(?:[{_ALONE}]|[^\s{_ALONE}]+)")
_IS_ALONE = re.compile(f"[{_ALONE}]")


def pieces_of(text: str) -> list[str]:
    """Return the words of a text, each with the space before it; also the first, where its language has spaces."""
    found = _PIECES.findall(text.strip())
    if found and not _IS_ALONE.match(found[0]):
        found[0] = f" {found[0]}"
    return found


def place_behind(known: Sequence[str], words: Sequence[str]) -> tuple[int, int]:
    """Return how many of the first ``words`` stand for all ``known`` ones, and the edits between the two, which are the fewest."""
    if list(words[: len(known)]) == list(known):
        return len(known), 0
    given, written = [*map(_plain, known)], [*map(_plain, words)]
    row = list(range(len(written) + 1))
    for number, one in enumerate(given, 1):
        before, row[0] = row[0], number
        for at, other in enumerate(written, 1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (one != other))
    last = [one == given[-1] for one in written]  # of those with the fewest edits, one that ends alike, or is as long
    ranks = [(each, not (at and last[at - 1]), abs(at - len(known)), at) for at, each in enumerate(row)]
    return min(ranks)[-1], min(row)


def _plain(word: str) -> str:
    return word.strip(string.punctuation + string.whitespace).casefold()


@define
class Part:
    """A segment of a hypothesis.

    Attributes:
        count: words up to its end.
        segment: it, with seconds from the beginning of the sound.
    """

    count: int
    segment: Segment


@define
class Hypothesis:
    """The words of a window.

    Attributes:
        pieces: as of :func:`pieces_of`.
        parts: the segments that they are in; empty: not known.
        words: with seconds from the beginning of the sound; empty: no times are known.
        is_cut: by a limit on its tokens, as a text that repeats itself is.
    """

    pieces: list[str] = field(factory=list)
    parts: list[Part] = field(factory=list)
    words: list[Word] = field(factory=list)
    is_cut: bool = False

    @classmethod
    def of(cls, written: Transcript, begin: float) -> Hypothesis:
        """Return the transcript of a window that begins at ``begin`` seconds."""
        pieces, parts, length = pieces_of(written.text), list[Part](), 0
        begins = [0, *accumulate(len(_dense(each)) for each in pieces)][:-1]
        for each in written.segments:
            length += len(_dense(each.text))
            segment = evolve(each, start=begin + each.start, end=begin + each.end)
            parts.append(Part(bisect_left(begins, length), segment))
        words = [evolve(each, start=begin + each.start, end=begin + each.end) for each in written.words]
        return cls(pieces, parts, words, written.finish_reason == "length")

    def between(self, first: int, last: int) -> list[Word]:
        """Return the words that begin in pieces ``first`` to ``last``."""
        begin, end = self._length(first), self._length(last)
        return [word for place, word in self._placed() if begin <= place < end]

    def behind(self, word: Word) -> int:
        """Return how many pieces begin before the end of a word."""
        end = next(place + len(_dense(each.text)) for place, each in self._placed() if each is word)
        return next((number for number in range(len(self.pieces)) if self._length(number) >= end), len(self.pieces))

    def _length(self, count: int) -> int:
        return len(_dense("".join(self.pieces[:count])))

    def _placed(self) -> list[tuple[int, Word]]:
        place, found = 0, list[tuple[int, Word]]()
        for each in self.words:
            found.append((place, each))
            place += len(_dense(each.text))
        return found


def _dense(text: str) -> str:
    return "".join(text.split())
