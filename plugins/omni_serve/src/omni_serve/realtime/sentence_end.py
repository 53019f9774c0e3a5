"""The silence that ends a turn, by what was said in it: a finished sentence ends it sooner, one that is not finished later. No IO."""

from __future__ import annotations

from typing import Literal

from attrs import define

from omni_core.api import SentenceCutter

Eagerness = Literal["low", "medium", "high", "auto"]

_SHARES: dict[Eagerness, tuple[float, float]] = {
    "low": (0.8, 4),
    "medium": (0.5, 2),
    "auto": (0.5, 2),
    "high": (0.3, 1),
}
"""By eagerness, the silence after a sentence, and after words that are none yet, as shares of the usual silence."""

_TAIL = 200
"""Characters of the end of a text that are looked at."""


@define
class SentenceEnd:
    """The rule of one session.

    A recogniser that writes no marks tells nothing of sentences: until one has been seen, and while nothing is written, the usual silence
    holds. It holds after a sentence too, if nothing was written since the user was last heard: the text may lack the latest words.

    Attributes:
        usual_ms: silence that ends a turn, where the text tells nothing.
    """

    usual_ms: int
    eagerness: Eagerness
    _has_marks: bool = False
    _has_text: bool = False
    _is_finished: bool = False
    _is_new: bool = False

    def said(self, text: str) -> None:
        """Take the text of the turn in progress, as far as it is written; empty at its beginning."""
        self._has_text, self._is_finished, self._is_new = bool(text.strip()), is_finished(text), True
        self._has_marks |= self._is_finished

    def spoke(self) -> None:
        """Take in that the user was heard."""
        self._is_new = False

    @property
    def silence_ms(self) -> int:
        """The silence that ends the turn."""
        if not (self._has_marks and self._has_text) or (self._is_finished and not self._is_new):
            return self.usual_ms
        return round(self.usual_ms * _SHARES[self.eagerness][not self._is_finished])


def is_finished(text: str) -> bool:
    """Return whether a text ends with a sentence: with its mark, and not with an abbreviation."""
    rest = f"{text.strip()[-_TAIL:]} A"
    while parts := SentenceCutter().feed(rest):
        rest = rest[rest.index(parts[-1]) + len(parts[-1]) :].lstrip()
    return rest == "A"
