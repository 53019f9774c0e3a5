"""The words of a sentence that VITS has spoken, with their times: by the frames that its durations give each token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from omni_core.api import Word

Place = tuple[str, int, int]
"""A word, its first token, and the one behind its last."""


def places(tokenizer: Any, sentence: str, tokens: int) -> list[Place]:
    """Return the places of a sentence's words among its tokens; where they cannot be told apart, of the sentence as one word.

    Args:
        tokenizer: a ``VitsTokenizer``: a token for each character of its own form of a text, mostly with one between any two.
        tokens: of the sentence.
    """

    def written(text: str) -> str:
        form, _ = tokenizer.prepare_for_tokenization(text)
        return str(form)

    text, words = written(sentence), sentence.split()
    spoken = [match.span() for match in re.finditer(r"\S+", text)]
    counts = [len(written(word).split()) for word in words]  # a number may be several, a dash none
    step = 2 if tokenizer.add_blank else 1
    if sum(counts) != len(spoken) or tokens != step * len(text) + step - 1:
        return [(sentence.strip(), 0, tokens)]
    found, at = list[Place](), 0
    for word, count in zip(words, counts, strict=True):
        if count:
            begin, end = spoken[at][0], spoken[at + count - 1][1]
            found.append((word, step * begin + step - 1, step * end))
        at += count
    return found


def timed(found: Sequence[Place], frames: Sequence[int], seconds: float) -> list[Word]:
    """Return words with their times.

    Args:
        found: their places.
        frames: of each token.
        seconds: of a frame.
    """
    ends = [0, *accumulate(frames)]
    return [Word(text, ends[begin] * seconds, ends[end] * seconds) for text, begin, end in found]
