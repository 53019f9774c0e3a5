"""Text of ids as they come: in whole characters, joined what the whole text is, with every kind of tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_transformers import byte_tokenizer
from transformers import ByT5Tokenizer

from omni_transformers.words.pieces import Pieces

TEXT = "a ä 日本  b\n\U0001f600."


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), ByT5Tokenizer()], ids=["fast", "slow"])
def test_pieces_are_whole_characters_and_joined_the_text(tokenizer: Any) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    step = Pieces(tokenizer)
    found = [step(token) for token in [*ids, tokenizer.eos_token_id]]
    assert "".join(found) == TEXT
    assert "\ufffd" not in "".join(found)
    assert len(found) > sum(map(bool, found)) == len(TEXT)


def test_a_slow_tokenizer_decodes_a_few_ids_each_time() -> None:
    class Counting(ByT5Tokenizer):  # type: ignore[misc]
        longest = 0

        def decode(self, ids: Any, **options: Any) -> Any:
            self.longest = max(self.longest, len(ids))
            return super().decode(ids, **options)

    tokenizer = Counting()
    step = Pieces(tokenizer)
    for token in tokenizer.encode("word " * 200, add_special_tokens=False):
        step(token)
    assert tokenizer.longest <= 4


def test_marks_stay_in_the_text_and_other_special_tokens_do_not() -> None:
    tokenizer = byte_tokenizer("[A]", "[B]")
    step = Pieces(tokenizer, ["[A]"])
    [half, *_] = tokenizer.encode("\u00e4", add_special_tokens=False)
    ids = [*tokenizer.encode("x[A]y[B]z", add_special_tokens=False), half]
    assert "".join(map(step, ids)) + step.rest() == "x[A]yz\ufffd"
