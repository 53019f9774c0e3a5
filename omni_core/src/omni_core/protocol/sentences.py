"""Cuts a text that arrives in pieces into sentences, which can be spoken one after the other."""

from __future__ import annotations

import re
import unicodedata

from attrs import define

_END = re.compile(r"[.!?…]+[\"'”’)\]]*\s+|[。！？｡।॥؟۔።։။។]+[」』”’）】》]*\s*|\n+")
"""Ends: of scripts with spaces between sentences; of those where a mark is enough, such as Chinese, Hindi, Arabic; of a line."""

_SHORTENED = re.compile(
    r"(dr|mr|mrs|ms|prof|st|mt|sr|jr|rev|gen|col|capt|lt|sgt|gov|sen|messrs|mme|mlle|sra|srta|vs|etc|approx|dept|inc|ltd|co|corp"
    r"|bzw|ca|hr|fr|usw|vgl)"
)
"""Words that have a point at their end, and go on."""

_NUMBERED = re.compile(r"(no|nr|fig|vol|ch|art|sec|p|pp)")
"""Words that have a point before a number."""

_WORD = re.compile(r"[\w.]+$")
_ITEM = re.compile(r"(?:^|\n)\s*\d+$")
_SHORT = 20  # characters of the longest word that is looked at
_JOINER, _TONES, _FLAGS = "\u200d", range(0x1F3FB, 0x1F400), range(0x1F1E6, 0x1F200)
_LONGEST_CHARACTER = 64

FIRST, LATER = 1, 40
"""Characters of the shortest part: the first sentence is spoken at once, later short ones together with what follows."""

LONGEST = 1000
"""A part without any end is cut between words here."""


@define
class SentenceCutter:
    """Takes text; returns the parts that are complete.

    Marks and emojis alone, which many voices cannot speak, go with what follows. Those at the end of a text are left out, unless it has
    nothing else.
    """

    _text: str = ""
    _count: int = 0
    _said: bool = False

    def feed(self, text: str) -> list[str]:
        """Add text; return the parts that it completes."""
        self._text += text
        parts = []
        while (end := self._end()) is not None:
            parts.append(self._text[:end].strip())
            self._text = self._text[end:]
            self._count += 1
            self._said = self._said or _says(parts[-1])
        return [part for part in parts if part]

    def finish(self) -> list[str]:
        """Return what is left."""
        rest, self._text = self._text.strip(), ""
        return [rest] if rest and (_says(rest) or not self._said) else []

    def _end(self) -> int | None:
        least = LATER if self._count else FIRST
        for found in _END.finditer(self._text, 0, LONGEST + 1):
            if found.end() >= len(self._text) or found.end() > LONGEST:
                break
            if self._goes_on(found):
                continue
            part = self._text[: found.end()].strip()
            if len(part) >= least and _says(part):
                return found.end()
        if len(self._text) <= LONGEST:
            return None
        return self._text.rfind(" ", 0, LONGEST) + 1 or _whole(self._text, LONGEST)

    def _goes_on(self, end: re.Match[str]) -> bool:
        """Return whether a point is one of an abbreviation, or of the number of an item."""
        if end[0][0] not in ".…":
            return False
        following = self._text[end.end()]
        if following.islower():
            return True
        before = self._text[max(0, end.start() - _SHORT) : end.start()]
        found = _WORD.search(before)
        if found is None or end[0].startswith(("..", "…")):
            return False
        word = found[0].lower()
        initials = all(len(each) == 1 and each.isalpha() for each in word.split(".")) and found[0] != "I"
        numbered = _NUMBERED.fullmatch(word) is not None and following.isdigit()
        return initials or numbered or bool(_SHORTENED.fullmatch(word) or _ITEM.search(before))


def _says(text: str) -> bool:
    return any(map(str.isalnum, text))


def _whole(text: str, at: int) -> int:
    """Return the last place up to ``at`` where no character of several code points is cut: a letter with its accents, an emoji."""
    for place in range(at, at - _LONGEST_CHARACTER, -1):
        after = text[place]
        flags = len(re.search(r"[\U0001F1E6-\U0001F1FF]*$", text[:place])[0])  # type: ignore[index]  # it matches always
        joined = unicodedata.category(after) in ("Mn", "Me", "Mc") or _JOINER in (after, text[place - 1])
        if not joined and ord(after) not in _TONES and not (ord(after) in _FLAGS and flags % 2):
            return place
    return at
