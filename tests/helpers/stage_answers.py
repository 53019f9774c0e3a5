"""Requests to a stage outside a pipeline, its answers, and the comparison of those of two stages."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_qwen3.decode import create_decode
from omni_torch.engine.scheduler import EngineScheduler

SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0, "max_new_tokens": 12},
    {"temperature": 1.0, "seed": 3, "max_new_tokens": 20},
    {"temperature": 0.0, "max_new_tokens": 5},
    {"temperature": 0.8, "seed": 4, "max_new_tokens": 16},
    {"temperature": 0.0, "max_new_tokens": 18},
]


def answers(stage: EngineScheduler, messages: list[list[IncomingMessage]]) -> dict[str, list[OutgoingMessage]]:
    """Return the messages of each request; one more comes after every second step."""
    sent: dict[str, list[OutgoingMessage]] = {}
    finished, left, steps = 0, list(messages), 0
    with torch.inference_mode():
        while finished < len(messages):
            if left and (steps % 2 == 0 or finished == len(messages) - len(left)):
                for message in left.pop(0):
                    stage.inbox.put(message)
            assert stage.loop.turn()
            steps += 1
            for message in stage.outbox.drain():
                assert message.type != "error", message.data
                sent.setdefault(message.request_id, []).append(message)
                finished += message.type == "result"
    return sent


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor) and one.is_floating_point():
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    else:
        assert one == other


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
