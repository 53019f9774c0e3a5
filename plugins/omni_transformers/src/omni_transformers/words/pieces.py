"""The text of token ids as they come, in whole characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_torch.api import text_decoder


class Pieces:
    """Called with one id of a text after the other, returns the text that each completes.

    Args:
        tokenizer: of the text.
        marks: special tokens that stay in the text; others are left out.
    """

    def __init__(self, tokenizer: Any, marks: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._marks = {tokenizer.convert_tokens_to_ids(mark): mark for mark in marks}
        self._begin()

    def _begin(self) -> None:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        self._step = _Slow(self._tokenizer).step if backend is None else text_decoder(backend)
        self._ids: list[int] = []
        self._texts: list[str] = []

    def __call__(self, token: int) -> str:
        mark = self._marks.get(token)
        if mark is not None:
            rest = self.rest()
            self._begin()
            return rest + mark
        self._ids.append(token)
        self._texts.append(text := self._step(token) or "")
        return text

    def rest(self) -> str:
        """Return the text of what is still incomplete: replacement marks."""
        known = "".join(self._texts)
        whole: str = self._tokenizer.decode(self._ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return whole[len(known) :] if whole.startswith(known) else ""


class _Slow:
    """Decodes the ids since the piece before last, without the new ones and with them: a piece may depend on what is before it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._known = 0

    def step(self, token: int) -> str:
        self._ids.append(token)
        before, text = self._decoded(self._ids[: self._known]), self._decoded(self._ids)
        if len(text) <= len(before) or text.endswith("\ufffd"):
            return ""
        self._ids, self._known = self._ids[self._known :], len(self._ids) - self._known
        return text[len(before) :]

    def _decoded(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
