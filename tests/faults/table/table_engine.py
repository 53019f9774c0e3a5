"""A stage of the engine, with the toy model of its tests, whose step may act as a request asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from table_poison import act
from toy_model import ToyModel, ToyRunner

from omni_core.model_runner import ARRequest, RandomStream, SamplingParams
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage


class Runner(ToyRunner):
    """Three tokens for each request."""

    def receive(self, message: IncomingMessage) -> ARRequest:
        payload, sampling = message.data, SamplingParams(max_new_tokens=3)
        return ARRequest(
            payload.request_id, payload.request, [1, 2], sampling, state=payload.data, random=RandomStream(0)
        )

    def choose(self, logits: Any, requests: list[ARRequest]) -> list[int]:
        for each in requests:
            act(each.state, "engine")
        return super().choose(logits, requests)

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        return ()

    def result(self, request: ARRequest) -> dict[str, Any]:
        return {"n": request.state["n"]}


def create_runner() -> Runner:
    return Runner(ToyModel())
