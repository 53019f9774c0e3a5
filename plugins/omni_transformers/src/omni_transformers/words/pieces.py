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
    """Decodes the last few ids twice, without the new one and with it: what a text begins with may depend on what is before it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._known = 0

    def step(self, token: int) -> str:
        self._ids.append(token)
        before = self._decoded(self._ids[: self._known])
        text = self._decoded(self._ids)
        if text.endswith("\ufffd") or not text.startswith(before) or len(text) == len(before):
            return ""
        self._ids, self._known = self._ids[max(0, self._known - 4) :], min(self._known, 4)
        begun = self._decoded(self._ids[: self._known])
        self._known = len(self._ids)
        return self._decoded(self._ids)[len(begun) :]

    def _decoded(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
