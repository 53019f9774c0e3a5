"""Reads the replies of a checkpoint by their form."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from omni_core.api import ReasoningChunk, TextChunk
from omni_transformers.words.forms import CHANNELS, Form
from omni_transformers.words.thoughts import ByTemplate, Channels, Parts, Splitter, Tagged, Told, Unsplit

_TAIL = 16
"""Tokens at the end of a prompt in which a chat template may open thoughts."""

_Result = TypeVar("_Result")


class Replies:
    """Reads the replies of one checkpoint.

    Args:
        tokenizer: of the checkpoint.
    """

    def __init__(self, tokenizer: Any, form: Form) -> None:
        self._tokenizer, self._form = tokenizer, form
        special = [each.content for each in getattr(tokenizer, "added_tokens_decoder", {}).values() if each.special]
        template = getattr(tokenizer, "response_template", None)
        read = json.dumps(template, ensure_ascii=False).replace("\\", "") if form.templated else form.marks
        self.marks = tuple(each for each in special if each in read)

    def begin(self, prompt: Sequence[int]) -> Told:
        """Return the reader of a reply to a prompt's tokens."""
        return Told(self._splitter(prompt))

    def _splitter(self, prompt: Sequence[int]) -> Splitter:
        if self._form.templated:
            return ByTemplate(self._tokenizer.response_template, self._decoded(prompt))
        if self._form.thoughts == CHANNELS:
            return Channels()
        if isinstance(self._form.thoughts, tuple):
            begin, end = self._form.thoughts
            return Tagged(begin, end, self._decoded(prompt[-_TAIL:]).rstrip().endswith(begin.rstrip()))
        return Unsplit()

    def _decoded(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode([each for each in ids if each >= 0], skip_special_tokens=False)
        return text


def chunks_of(parts: Parts) -> list[TextChunk | ReasoningChunk]:
    """Return the chunks that a stage streams."""
    return [ReasoningChunk(text) if is_thought else TextChunk(text) for is_thought, text in parts]


def one_by_one(lists: Generator[list[Any], None, _Result]) -> Generator[Any, None, _Result]:
    """Yield what is in each list, ``None`` for an empty one; return what the generator returns."""
    try:
        while True:
            try:
                found = next(lists)
            except StopIteration as end:
                result: _Result = end.value
                return result
            yield from found or (None,)
    finally:
        lists.close()
