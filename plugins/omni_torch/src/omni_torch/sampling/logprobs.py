"""Tells the log probabilities of a text's tokens: their texts and bytes, in step with the text that is sent."""

from __future__ import annotations

from collections import deque
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from omni_core.api import TokenLogprob

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

Entry = list[tuple[int, float]]
"""A token with its log probability, then likely ones in its place; see :class:`omni_core.api.ARRequest`."""


class TokenLogprobs:
    """The log probabilities of one text, which comes token by token. Those of special tokens, which are no text, are left out.

    Attributes:
        told: what :meth:`until` has returned, all of it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytewise = "ByteLevel" in repr(tokenizer.decoder)
        self._waiting: deque[tuple[int, Entry]] = deque()
        self._added: dict[int, AddedToken] | None = None
        self.told: list[TokenLogprob] = []

    def add(self, entry: Entry, begin: int) -> None:
        """Add a token. ``begin``: the characters of the text before it."""
        if self._added is None:
            self._added = self._tokenizer.get_added_tokens_decoder()
        if (token := self._added.get(entry[0][0])) is None or not token.special:
            self._waiting.append((begin, entry))

    def until(self, end: int) -> list[TokenLogprob]:
        """Return those of the tokens that begin in the first ``end`` characters, and have not been returned yet."""
        found = []
        while self._waiting and self._waiting[0][0] < end:
            entry = self._waiting.popleft()[1]
            found.append(self._made(*entry[0], [self._made(*each) for each in entry[1:]]))
        self.told += found
        return found

    def _made(self, token: int, logprob: float, top: list[TokenLogprob] | None = None) -> TokenLogprob:
        data = self._bytes_of(token)
        return TokenLogprob(data.decode(errors="replace"), data, logprob, token, top or [])

    def _bytes_of(self, token: int) -> bytes:
        text = self._tokenizer.id_to_token(token) or ""
        if self._bytewise and self._added and token in self._added:
            return text.encode()  # as it is: its letters stand for no bytes
        if self._bytewise:
            known = _byte_letters()
            return bytes(chain.from_iterable([known[each]] if each in known else each.encode() for each in text))
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes.fromhex(text[3:5])
        return text.replace("▁", " ").encode()


@cache
def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter in the vocabularies of byte-level BPE: printable ones stand for themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [each for each in range(256) if each not in plain]
    return {chr(each): each for each in plain} | {chr(256 + index): each for index, each in enumerate(others)}
