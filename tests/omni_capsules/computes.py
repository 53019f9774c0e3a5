"""Computes of the tests of capsules, which a capsule names as ``computes:NAME``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.streaming import StreamingScheduler

SCALE = 2.0
"""Tests change it: then a replay computes something else."""


def scaled(payload: StagePayload) -> dict[str, Any]:
    return {"rows": payload.data["rows"] * SCALE, "name": payload.data["name"]}


def letters(payload: StagePayload) -> Iterator[str]:
    yield from payload.data
    return payload.data.upper()  # type: ignore[return-value]


def divides(payload: StagePayload) -> float:
    return 1.0 / payload.data["n"]  # type: ignore[no-any-return]


def parts(payload: StagePayload) -> dict[str, Any]:
    return {"twice": {"n": payload.data["n"] * 2}, "same": payload.data}


def wrong_route(request_id: str, payload: StagePayload) -> str:
    raise LookupError("no way")


class Sum(StreamingScheduler[list[Any]]):
    """Adds up the chunks of ``source``, and streams each sum."""

    def __init__(self, source: str) -> None:
        super().__init__((source,))

    def new_state(self, request_id: str, request: OmniRequest | None) -> list[Any]:
        return [np.zeros(3, np.float32)]

    def on_chunk(self, state: list[Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        state.append(state[-1] + chunk)

    def step(self, states: dict[str, list[Any]]) -> dict[str, BaseException]:
        for request_id, state in states.items():
            for each in state[1:]:
                self.emit(request_id, each)
            del state[:-1]
        return {}

    def finish(self, request_id: str, state: list[Any]) -> Any:
        return {"sum": state[-1]}
