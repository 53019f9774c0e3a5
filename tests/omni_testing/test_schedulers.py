"""Every scheduler of this workspace keeps the contract."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from running import running
from stepping import Count, Counting

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, Scheduler
from omni_core.scheduling.simple import SimpleScheduler
from omni_testing import SchedulerConformance, StepSchedulerConformance


def compute(payload: StagePayload) -> Any:
    if "fail" in payload.data:
        raise ValueError("a bad request")
    time.sleep(payload.data.get("sleep", 0.0))
    return {"double": 2 * payload.data["n"]}


class TestSimple(SchedulerConformance):
    def make(self) -> Scheduler:
        return SimpleScheduler(compute)

    def good(self, number: int) -> Any:
        return {"n": number}

    def bad(self) -> Any:
        return {"fail": True}

    def endless(self) -> Any:
        return {"n": 0, "sleep": 1.0}


class TestBatched(TestSimple):
    def make(self) -> Scheduler:
        return SimpleScheduler(compute, lambda batch: [compute(each) for each in batch], max_batch_size=4)


class TestSteps(StepSchedulerConformance):
    def make(self) -> Scheduler:
        return Counting(max_batch_size=4)

    def good(self, number: int) -> Any:
        return {"goal": 2 + number}

    def bad(self) -> Any:
        return {"fail": True}

    def long(self) -> Any:
        return {"goal": 1000, "sleep": 0.005}

    def bad_at_a_step(self) -> Any:
        return {"goal": 3, "wall": 1}


def test_a_request_that_is_paused_is_left_out_of_the_steps() -> None:
    scheduler = Counting()
    for name in ("slow", "other"):
        scheduler.inbox.put(IncomingMessage(name, "new_request", StagePayload(name, OmniRequest(), {"goal": 20})))
    scheduler.turn()
    scheduler.pause("slow", True)
    with running(scheduler):
        while (message := scheduler.outbox.get(5)) is not None and message.type != "result":
            continue
        assert message is not None
        assert message.request_id == "other"
        while scheduler.inbox.read_at < float("inf"):  # it sleeps: nothing can be computed
            time.sleep(0.001)
        assert scheduler.statistics()["running"] == 1
        scheduler.pause("slow", False)
        while (message := scheduler.outbox.get(5)) is not None and message.type != "result":
            continue
        assert message is not None
        assert message.data == {"number": 20, "value": 2**20 - 1}


class Streamed(Counting):
    """Takes a goal as chunks: each makes it higher by one; a request begins at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.goals: dict[str, int] = {}

    def receive(self, message: IncomingMessage) -> None:
        name = message.request_id
        if message.type == "stream_chunk":
            self.goals[name] = self.goals.get(name, 0) + int(message.data)
        else:
            self.admit(name, lambda: StagePayload(name, OmniRequest(), {"goal": self.goals.pop(name)}))


def test_a_request_of_steps_may_come_in_chunks() -> None:
    scheduler = Streamed()
    for name, data in [("one", 1), ("two", 2), ("wrong", "x")]:
        scheduler.inbox.put(IncomingMessage(name, "stream_chunk", data))
    scheduler.turn()
    assert [(each.request_id, each.type) for each in scheduler.outbox.drain()] == [("wrong", "error")]
    for name in ("one", "two"):
        scheduler.inbox.put(IncomingMessage(name, "stream_done"))
    with running(scheduler):
        ended = []
        while len(ended) < 2 and (message := scheduler.outbox.get(5)) is not None:
            ended += [message] if message.type == "result" else []
    assert [(each.request_id, each.data["number"]) for each in ended] == [("one", 1), ("two", 2)]


class Exits:
    def __eq__(self, other: object) -> bool:
        raise SystemExit(3)

    __hash__ = object.__hash__


@pytest.mark.parametrize("key", [float("nan"), Exits(), np.zeros(2)], ids=["nan", "exits", "array"])
def test_a_key_that_cannot_be_compared_has_its_steps_alone(key: Any) -> None:
    class Keyed(Counting):
        def key(self, state: Count) -> Any:
            return key if state.goal == 3 else 0

    scheduler = Keyed(max_batch_size=4)
    for goal in (2, 3, 4):
        payload = StagePayload(str(goal), OmniRequest(), {"goal": goal})
        scheduler.inbox.put(IncomingMessage(str(goal), "new_request", payload))
    for _ in range(20):
        scheduler.inbox.put(IncomingMessage("", "new_request", None))  # no turn waits
        scheduler.turn()
    results = {each.request_id: each.data["number"] for each in scheduler.outbox.drain() if each.type == "result"}
    assert results == {"2": 2, "3": 3, "4": 4}
