"""The text of a transcript as it grows by tokens, and its words with their times."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from attrs import evolve

from omni_core.api import Segment, Word

UNREADABLE = "\ufffd"
"""The mark that a part of a character is decoded to."""

_OPENING = "\"'“¡¿([{-"
_CLOSING = "\"'.。,，!！?？:：”)]}、"
_PUNCTUATION = {*string.punctuation, *_OPENING, *_CLOSING}

UNSPACED = ("zh", "ja", "th", "lo", "my", "yue", "km")
"""Languages that put no spaces between words: each character is told as one."""


def decoded(tokenizer: Any, ids: Sequence[int], **options: Any) -> str:
    """Return the text of tokens, without special ones."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False, **options)
    return text


class Growing:
    """A text that grows at its end, of which each piece is told once. It begins and ends with no space."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def add(self, whole: str, complete: bool = False) -> str:
        """Return what is new in the text so far. ``complete``: no character of it is still to be finished."""
        whole = whole.strip() if complete else whole.rstrip(UNREADABLE).strip()
        if not complete and not whole.startswith(self.text):  # a tokenizer may write what came before anew
            return ""
        piece = whole[len(self.text) :]
        self.text += piece
        return piece


def pieces(
    tokenizer: Any, ids: Sequence[int], starts: Sequence[float], ends: Sequence[float]
) -> Iterator[tuple[str, float, float]]:
    """Yield the text of tokens with their times, in whole characters; a piece that begins a word begins with a space."""
    boundary = getattr(tokenizer, "word_delimiter_token", None)
    held: list[int] = []
    for number, token in enumerate(tokenizer.convert_ids_to_tokens(list(ids))):
        held.append(number)
        if token is not None and token == boundary:
            text = " "
        else:
            text = decoded(tokenizer, [ids[each] for each in held])
            first = tokenizer.convert_ids_to_tokens(ids[held[0]]) or ""
            text = f" {text}" if first.startswith("▁") and not text.startswith(" ") else text
        if text.endswith(UNREADABLE) and number + 1 < len(ids):
            continue
        if text:
            yield text, starts[held[0]], ends[number]
        held = []


def words(parts: Iterable[tuple[str, float, float]], spaced: bool = True) -> list[Word]:
    """Return the words of pieces of a text with their times; punctuation belongs to the word that it touches.

    Args:
        spaced: words have spaces between them. Otherwise each piece is one.
    """
    found: list[Word] = []
    new = True
    for text, start, end in parts:
        inner = text.strip()
        new = new or text[:1].isspace() or not spaced
        if inner and found and inner in _CLOSING and not text[:1].isspace():
            new = False
        if inner and found and found[-1].text and set(found[-1].text) <= set(_OPENING):
            new = False  # an opening mark, which stands alone so far
        if inner and new:
            found.append(Word(inner, start, end))
        elif inner:
            last = found.pop()
            found.append(Word(last.text + inner, last.start, end))
        if inner:
            new = False
        new = new or text[-1:].isspace()
    return found


Timed = TypeVar("Timed", Word, Segment)


def in_order(found: Sequence[Timed], duration: float, before: Sequence[Timed] = ()) -> list[Timed]:
    """Return words or segments with times within ``duration`` seconds, and starts that never fall, also after those ``before``."""
    least, made = before[-1].start if before else 0.0, []
    for each in found:
        least = min(max(each.start, least), duration)
        made.append(evolve(each, start=least, end=min(max(each.end, least), duration)))
    return made


PAUSE = 1.0
"""Seconds between two segments."""


def segments(found: Sequence[Word]) -> list[Segment]:
    """Return words as segments, divided after the ends of sentences, at pauses, and where another speaker begins."""
    made: list[list[Word]] = []
    for each in found:
        last = made[-1][-1] if made else None
        if (
            last is None
            or last.text[-1] in ".?!。？！"
            or each.start - last.end > PAUSE
            or each.speaker != last.speaker
        ):
            made.append([])
        made[-1].append(each)
    return [
        Segment(" ".join(word.text for word in part), part[0].start, part[-1].end, part[0].speaker) for part in made
    ]
