"""Splits a text into turns: at changes of speaker and, where it is long, at ends of sentences."""

from __future__ import annotations

import itertools
import re

SPEAKER_TAG = re.compile(r"<\|speaker:\d+\|>")

MOST_SPEAKERS = 5
"""The number of speakers' turns that are spoken in one part."""

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")
_CLAUSE_END = re.compile(r"(?<=[,;:—])\s+|(?<=[，、；：])")
_WORD_END = re.compile(r"\s+")


def split_text(text: str, most_bytes: int) -> list[str]:
    """Return the parts of a text, which are spoken one after another, each with the earlier ones as context.

    A part has at most ``most_bytes`` bytes of UTF-8 (separators between its pieces not counted) and five speakers'
    turns. A text that is short enough stays as it is. A turn that is too long is split at ends of sentences, then of
    clauses, then of words, then anywhere; its tag is repeated.
    """
    tags = list(SPEAKER_TAG.finditer(text))
    if not tags:
        pieces = [text] if _size(text) <= most_bytes else _pieces(text.strip(), most_bytes)
        return _grouped(pieces, most_bytes, " ", len(pieces))
    bounds = [match.start() for match in tags] + [len(text)]
    turns = [text[begin:end].strip() for begin, end in itertools.pairwise(bounds)]
    opening = text[: bounds[0]].strip()
    pieces = _pieces(opening, most_bytes) if opening else []
    for turn in turns:
        pieces += _tagged_pieces(turn, most_bytes)
    return _grouped(pieces, most_bytes, "\n", MOST_SPEAKERS)


def _tagged_pieces(turn: str, most_bytes: int) -> list[str]:
    if _size(turn) <= most_bytes:
        return [turn]
    match = SPEAKER_TAG.match(turn)
    assert match is not None
    tag, words = match.group(), turn[match.end() :].strip()
    sentences = _pieces(words, most_bytes - _size(tag))
    return [tag + each for each in _grouped(sentences, most_bytes - _size(tag), " ", len(sentences))]


def _pieces(text: str, most_bytes: int) -> list[str]:
    """Split ``text`` into pieces of at most ``most_bytes`` bytes, at the best boundary available."""
    for cut in (_SENTENCE_END, _CLAUSE_END, _WORD_END):
        if _size(text) <= most_bytes:
            return [text]
        parts = [part for part in cut.split(text) if part]
        if len(parts) > 1:
            return [piece for part in parts for piece in _pieces(part, most_bytes)]
    if _size(text) <= most_bytes:
        return [text]
    half = len(text) // 2
    return [*_pieces(text[:half], most_bytes), *_pieces(text[half:], most_bytes)]


def _grouped(pieces: list[str], most_bytes: int, joint: str, most: int) -> list[str]:
    """Join neighbouring pieces as far as the limits allow."""
    groups: list[list[str]] = []
    for piece in pieces:
        fits = groups and len(groups[-1]) < most and sum(map(_size, groups[-1])) + _size(piece) <= most_bytes
        if fits:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return [joint.join(group) for group in groups]


def _size(text: str) -> int:
    return len(text.encode())


FIRST_BYTES, LATER_BYTES = 1, 120
"""The least length of a streamed turn: short for the first one, so that speech starts soon; longer later, for natural
prosody.
"""


class TextCutter:
    """Splits a text that arrives in pieces into turns of whole sentences; the turns do not depend on how the text was
    cut.

    Args:
        most_bytes: the longest turn; a sentence that is longer is cut between words.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._text = ""
        self._tag = ""
        self._cut = 0

    def feed(self, text: str) -> list[str]:
        """Add text; return the turns that it completes."""
        self._text += text
        turns = []
        while (end := self._end()) is not None:
            turns += self._turn(self._text[:end])
            self._text = self._text[end:]
        return turns

    def finish(self) -> list[str]:
        """Return the remaining text as turns; no more text follows."""
        rest, self._text = self._text, ""
        return self._turn(rest)

    def _end(self) -> int | None:
        """Return the end of the next turn: after a sentence that is followed by more text, or where the turn would grow too long."""
        least = LATER_BYTES if self._cut else FIRST_BYTES
        room = self._most - _size(self._tag)
        longest = _prefix(self._text, room)
        for match in _SENTENCE_END.finditer(self._text):
            # The text after it must have arrived: a blank may be followed by another one, which belongs to the sentence
            # before it.
            if match.end() >= len(self._text) or match.end() > longest:
                break
            if _size(self._text[: match.end()].strip()) >= least:
                return match.end()
        if longest == len(self._text):
            return None
        words = [match.end() for match in _WORD_END.finditer(self._text[:longest])]
        return words[-1] if words else longest

    def _turn(self, text: str) -> list[str]:
        """Return a turn with the tag of the current speaker, or none if it has no text."""
        spoken = text.strip()
        if not SPEAKER_TAG.sub("", spoken).strip():
            tags = SPEAKER_TAG.findall(spoken)
            self._tag = tags[-1] if tags else self._tag
            return []
        turn = spoken if SPEAKER_TAG.match(spoken) else self._tag + spoken
        self._tag = (SPEAKER_TAG.findall(spoken) or [self._tag])[-1]
        self._cut += 1
        return [turn]


def _prefix(text: str, most_bytes: int) -> int:
    """Return the length in characters of the longest prefix of ``text`` with at most ``most_bytes`` bytes."""
    if _size(text) <= most_bytes:
        return len(text)
    return len(text.encode()[:most_bytes].decode(errors="ignore"))
