"""Step schedulers whose input comes as a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

from attrs import define, evolve

from omni_core.api import IncomingMessage, OmniRequest, Scheduler, StagePayload
from omni_testing import StreamedInputConformance
from omni_torch.api import StepScheduler


@define
class Number:
    request_id: str
    value: int = 0


class Adding(StepScheduler[Number]):
    """Adds numbers to ten times what is there, one in a step."""

    def __init__(self, max_running: int = 2) -> None:
        super().__init__(2, max_running)
        self.given: dict[str, deque[int]] = {}
        self.ended: set[str] = set()

    def receive(self, message: IncomingMessage) -> None:
        if message.type == "new_request":
            self.given[message.request_id] = deque()
            super().receive(message)
        elif message.type == "stream_chunk" and message.request_id in self.given:
            self.given[message.request_id] += [int(each) for each in message.data]
        elif message.type == "stream_done":
            self.ended.add(message.request_id)

    def can_step(self, request_id: str) -> bool:
        return bool(self.given[request_id]) or request_id in self.ended

    def forget(self, request_id: str) -> None:
        super().forget(request_id)
        self.given.pop(request_id, None)
        self.ended.discard(request_id)

    def begin(self, payload: StagePayload) -> Number:
        return Number(payload.request_id)

    def key(self, state: Number) -> Hashable:
        return None

    def step(self, states: list[Number]) -> list[Number]:
        return [evolve(each, value=10 * each.value + self.given[each.request_id].popleft()) for each in states]

    def is_done(self, state: Number) -> bool:
        return not self.given[state.request_id] and state.request_id in self.ended

    def progress(self, state: Number) -> Any:
        return state.value

    def finish(self, state: Number) -> Any:
        return state.value


class TestStreamedInput(StreamedInputConformance):
    def make(self) -> Scheduler:
        return Adding()

    def pieces(self, number: int) -> list[Any]:
        return [str(each) for each in range(number, number + 8)]

    def join(self, pieces: list[Any]) -> Any:
        return "".join(pieces)

    def bad(self) -> Any:
        return "ten"


def test_a_request_that_waits_for_its_input_holds_no_place() -> None:
    scheduler = Adding(max_running=1)

    def put(name: str, kind: Any, data: Any = None) -> None:
        payload = StagePayload(name, OmniRequest(), None) if kind == "new_request" else data
        scheduler.inbox.put(IncomingMessage(name, kind, payload))

    for name in ("slow", "quick"):
        put(name, "new_request")
    for name, number in (("slow", "1"), ("quick", "2"), ("slow", "3"), ("quick", "4")):
        put(name, "stream_chunk", number)
        assert scheduler.turn()
        assert scheduler.statistics()["waiting"] == 2
        assert scheduler.statistics()["running"] == 0
    put("quick", "stream_done")
    put("slow", "stream_done")
    assert scheduler.turn()
    outputs = [(each.request_id, each.type, each.data) for each in scheduler.outbox.drain()]
    streamed = [("slow", 1), ("quick", 2), ("slow", 13), ("quick", 24)]
    assert outputs[:4] == [(name, "stream", value) for name, value in streamed]
    assert outputs[4:] == [("quick", "result", 24), ("slow", "result", 13)]
    assert scheduler.statistics()["waiting"] == 0
