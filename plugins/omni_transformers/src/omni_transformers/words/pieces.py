"""The text of token ids as they come, in whole characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_torch.api import text_decoder


def pieces(tokenizer: Any) -> Callable[[int], str]:
    """Return a function from one id of a text after the other to the text that each completes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _Slow(tokenizer).step
    step = text_decoder(backend)
    return lambda token: step(token) or ""


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
