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


_END = re.compile(r"[.!?…]+[”\")]*\s+|\n+")

LEAST = 40
"""Characters of a later part; the first sentence is spoken at once."""


@define
class PhonemeCutter:
    """Cuts a text of phonemes, whose sentences begin with no capital letter. See :class:`omni_core.api.SentenceCutter`."""

    _text: str = ""
    _least: int = 1

    def feed(self, text: str) -> list[str]:
        """Add text; return the parts that it completes."""
        self._text += text
        parts, begin = [], 0
        for end in _END.finditer(self._text):
            if end.end() < len(self._text) and len(self._text[begin : end.end()].strip()) >= self._least:
                parts.append(self._text[begin : end.end()].strip())
                begin, self._least = end.end(), LEAST
        self._text = self._text[begin:]
        return parts

    def finish(self) -> list[str]:
        """Return what is left."""
        rest, self._text = self._text.strip(), ""
        return [rest] if rest else []
