"""A step scheduler that counts, and the same with one mistake each."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any

from attrs import define, evolve

from omni_core.protocol.messages import StagePayload
from omni_torch.loop.steps import StepScheduler


@define
class Count:
    """A number on the way to another; it cannot go beyond ``wall``."""

    number: int
    goal: int
    wall: int
    seconds: float
    parity: int
    value: int = 0


class Counting(StepScheduler[Count]):
    """Adds one per step. Requests of equal parity share steps."""

    def begin(self, payload: StagePayload) -> Count:
        given = payload.data
        if "fail" in given:
            raise ValueError("a bad request")
        return Count(0, given["goal"], given.get("wall", 10**9), given.get("sleep", 0.0), given["goal"] % 2)

    def key(self, state: Count) -> Hashable:
        return state.parity

    def step(self, states: list[Count]) -> list[Count]:
        return [self.one(each) for each in states]

    def one(self, state: Count) -> Count:
        time.sleep(state.seconds)
        if state.number >= state.wall:
            raise ValueError("a wall")
        return evolve(state, number=state.number + 1, value=2 * state.value + 1)

    def is_done(self, state: Count) -> bool:
        return state.number >= state.goal

    def progress(self, state: Count) -> Any:
        return state.number

    def finish(self, state: Count) -> Any:
        return {"number": state.number, "value": state.value}


class ChangesItsStates(Counting):
    def one(self, state: Count) -> Count:
        stepped = super().one(state)
        state.value = stepped.value
        return stepped


class OneAtATime(Counting):
    def __init__(self) -> None:
        super().__init__(max_batch_size=1)


class RunsToTheEnd(Counting):
    def step(self, states: list[Count]) -> list[Count]:
        while not all(self.is_done(each) for each in states):
            states = super().step(states)
        return states


class FailsTogether(Counting):
    def _stepped_together(self, batch: Any, failures: Any) -> Any:
        try:
            states = self.step([self._states[each] for each in batch])
        except BaseException as error:
            failures.update(dict.fromkeys(batch, error))
            return {}
        return dict(zip(batch, states, strict=True))


class ForgetsNothing(Counting):
    def forget(self, request_id: str) -> None:
        pass
