"""Cuts a text that arrives in pieces into sentences, which can be spoken one after the other."""

from __future__ import annotations

import re

from attrs import define

_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])|\n+")

FIRST, LATER = 1, 40
"""Characters of the shortest part: the first sentence is spoken at once, later short ones together with what follows."""

LONGEST = 1000
"""A part without any end is cut between words here."""


@define
class SentenceCutter:
    """Takes text; returns the parts that are complete."""

    _text: str = ""
    _count: int = 0

    def feed(self, text: str) -> list[str]:
        """Add text; return the parts that it completes."""
        self._text += text
        parts = []
        while (end := self._end()) is not None:
            parts.append(self._text[:end].strip())
            self._text = self._text[end:]
            self._count += 1
        return [part for part in parts if part]

    def finish(self) -> list[str]:
        """Return what is left."""
        rest, self._text = self._text.strip(), ""
        return [rest] if rest else []

    def _end(self) -> int | None:
        least = LATER if self._count else FIRST
        for found in _END.finditer(self._text, 0, LONGEST + 1):
            if found.end() >= len(self._text) or found.end() > LONGEST:
                break
            if len(self._text[: found.end()].strip()) >= least:
                return found.end()
        if len(self._text) <= LONGEST:
            return None
        return self._text.rfind(" ", 0, LONGEST) + 1 or LONGEST
