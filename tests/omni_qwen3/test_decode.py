"""The decode stage: pieces concatenate to the reply exactly, characters stay whole, special tokens stay silent."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage
from omni_qwen3.decode import create_decode

TEXTS = ["hello there", "Grüße, 世界 🦊 und noch 👩‍👩‍👧!", "a  b\n\n c ", "", "��", "x" * 300]


def decoded(checkpoint: Path, ids: list[int], begun: str = "") -> tuple[list[str], str]:
    scheduler = create_decode(str(checkpoint))
    request, metadata = OmniRequest(), {"begun": begun} if begun else None
    for token in ids:
        scheduler.inbox.put(IncomingMessage("r", "stream_chunk", [token], "thinker", metadata, request))
    result = {"token_ids": ids, "finish_reason": "stop", "prompt_tokens": 3, "notices": ["n"]}
    scheduler.inbox.put(IncomingMessage("r", "stream_done", None, "thinker", None, request))
    scheduler.inbox.put(
        IncomingMessage("r", "new_request", StagePayload("r", request, result), "thinker", None, request)
    )
    threading.Thread(target=scheduler.start, daemon=True).start()
    pieces = []
    while (message := scheduler.outbox.get(10)) is not None and message.type == "stream":
        pieces.append(message.data.text)
    scheduler.stop()
    assert message is not None
    assert message.data.usage == {"prompt_tokens": 3, "completion_tokens": len(ids)}
    assert message.data.notices == ["n"]
    return pieces, message.data.text


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
