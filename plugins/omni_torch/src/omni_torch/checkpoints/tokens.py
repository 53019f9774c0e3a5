"""Divides texts into tokens with the ``tokenizers`` library: bounded by their length first, and without the interpreter's lock."""

from __future__ import annotations

from typing import Any
from unicodedata import normalize

from omni_core.api import RequestTooLargeError


def encoded(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text; special tokens in it are recognised, none are added. Several threads may encode at once.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
    """
    # Of one text, `encode` does not release the interpreter's lock: other requests would wait for a long one.
    [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def longest_token(tokenizer: Any) -> int:
    """Return the most bytes of a text that one token of a ``tokenizers.Tokenizer`` covers, at least."""
    return max(len(each.encode()) for each in tokenizer.get_vocab())


def check_length(text: str, longest_token: int, most: int) -> None:
    """Check a prompt before it is divided into tokens, by the fewest that it can have.

    Args:
        longest_token: see the function of this name.
        most: tokens of a prompt.

    Raises:
        RequestTooLargeError: it has more.
    """
    if len(text) <= most:
        return
    # Tokenizers compose characters first.
    least = len(text if text.isascii() else normalize("NFC", text).encode()) // longest_token
    if least > most:
        raise RequestTooLargeError(
            f"the prompt has {len(text)} characters, which are {least} tokens or more; the context has room for {most}"
        )
