"""A text that is phonemes already."""

from __future__ import annotations

import re

from attrs import define

from omni_core.api import InvalidRequestError
from omni_kokoro.spelling.tokens import Token


class Given:
    """Takes a text of phonemes as it is; what is written between two spaces is a word."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[Token]:
        """Return the tokens of a sentence.

        Raises:
            InvalidRequestError: a phoneme that the network has not learnt.
        """
        for phoneme in text:
            if phoneme not in self._vocabulary and not phoneme.isspace():
                raise InvalidRequestError(
                    f"messages: {phoneme!r} (U+{ord(phoneme):04X}), in {text[:60]!r}, is no phoneme of this model; "
                    f"its phonemes: {''.join(self._vocabulary)}"
                )
        return [Token(each, each, True) for each in text.split()]


_END = re.compile(r"(?<![.!?…])[.!?…]++[”\")]*\s+|\n+")

LEAST, LONGEST = 40, 1000
"""Characters of a later part, the first sentence is spoken at once; and where a part without an end is cut between words."""


@define
class PhonemeCutter:
    """Cuts a text of phonemes, whose sentences begin with no capital letter. See :class:`omni_core.api.SentenceCutter`."""

    _text: str = ""
    _least: int = 1

    def feed(self, text: str) -> list[str]:
        """Add text; return the parts that it completes."""
        self._text += text
        parts, begin = [], 0
        while end := self._end(begin):
            parts.append(self._text[begin:end].strip())
            begin, self._least = end, LEAST
        self._text = self._text[begin:]
        return [part for part in parts if part]

    def finish(self) -> list[str]:
        """Return what is left."""
        rest, self._text = self._text.strip(), ""
        return [rest] if rest else []

    def _end(self, begin: int) -> int:
        """Return the end of the part that begins there; 0: it is not complete."""
        last = begin + LONGEST
        for end in _END.finditer(self._text, begin, last + 1):
            if end.end() >= len(self._text) or end.end() > last:
                break
            if len(self._text[begin : end.end()].strip()) >= self._least:
                return end.end()
        if len(self._text) <= last:
            return 0
        return self._text.rfind(" ", begin, last) + 1 or last
