"""The decode stage: pieces concatenate to the reply exactly, characters stay whole, special tokens stay silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage_answers import decoded
from transformers import AutoTokenizer

TEXTS = ["hello there", "Grüße, 世界 🦊 und noch 👩‍👩‍👧!", "a  b\n\n c ", "", "��", "x" * 300]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_reply(tiny: dict[str, Path], text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny["a"])
    ids = tokenizer.encode(text, add_special_tokens=False)
    ids = [*ids[: len(ids) // 2], tokenizer.convert_tokens_to_ids("<|im_end|>"), *ids[len(ids) // 2 :]]
    pieces, whole = decoded(tiny["a"], ids)
    assert "".join(pieces) == whole == tokenizer.decode(ids, skip_special_tokens=True) == text
    if "�" not in text:
        assert not any("�" in piece for piece in pieces)


def test_an_unfinished_character_comes_last(tiny: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny["a"])
    ids = tokenizer.encode("ok 🦊", add_special_tokens=False)[:-1]
    pieces, whole = decoded(tiny["a"], ids)
    assert "".join(pieces) == whole == tokenizer.decode(ids)
    assert not any("�" in piece for piece in pieces[:-1])
