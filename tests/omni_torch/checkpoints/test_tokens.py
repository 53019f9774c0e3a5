"""Texts are bounded by their length before they are divided into tokens."""

from __future__ import annotations

import pytest

from omni_core.errors import RequestTooLargeError
from omni_torch.checkpoints.tokens import check_length


def test_no_text_is_refused_that_would_fit() -> None:
    """Characters are composed first: three of Hangul, nine bytes, become one of three."""
    jamo = "\u1112\u1161\u11ab"  # HAN
    check_length(jamo * 1000, 3, 1000)
    with pytest.raises(
        RequestTooLargeError, match="3003 characters, which are 1001 tokens or more; the context has room for 1000"
    ):
        check_length(jamo * 1001, 3, 1000)
    check_length("a" * 3002, 3, 1000)
    with pytest.raises(RequestTooLargeError):
        check_length("a" * 3003, 3, 1000)
    check_length("\u4f60" * 1000, 3, 1000)
