"""The loop of autoregressive stages: when requests with a constraint are admitted, and what a failed step leaves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omni_core.api import ARRequest, IncomingMessage, InvalidRequestError, OmniRequest, SamplingParams
from omni_torch.loop.autoregressive import AutoregressiveLoop, run_batch


class Made:
    """A constraint that is made when the test says so."""

    def __init__(self, problem: str = "") -> None:
        self.problem = problem
        self.call: Callable[[], None] = lambda: None

    def when_ready(self, call: Callable[[], None]) -> None:
        self.call = call

    def check(self) -> None:
        if self.problem:
            raise InvalidRequestError(self.problem)


class Runner:
    """Takes requests as they come."""

    def __init__(self) -> None:
        self.model, self.device, self.released = SimpleNamespace(), torch.device("cpu"), list[str]()

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        if message.type != "new_request":
            return None
        return ARRequest(message.request_id, OmniRequest(), [1], SamplingParams(), constraint=message.data)

    def has_enough(self, request: ARRequest) -> bool:
        return False

    def release(self, request_id: str) -> None:
        self.released.append(request_id)


class Policy:
    """Computes nothing, and notes whom it was given."""

    def __init__(self) -> None:
        self.admitted: list[str] = []

    def admit(self, request: ARRequest) -> None:
        self.admitted.append(request.request_id)

    def step(self) -> None:
        return None

    def remove(self, request_id: str, failed: bool) -> None:
        return None

    def forget(self) -> None:
        return None


def test_a_request_is_admitted_when_its_constraint_is_made_and_no_other_waits_for_it() -> None:
    runner, policy = Runner(), Policy()
    loop = AutoregressiveLoop(runner, policy, 100)  # type: ignore[arg-type]
    loop.wake_in = 0.0
    slow, wrong, given_up = Made(), Made("params.writer.structured: is wrong"), Made()
    for name, made in (("slow", slow), ("wrong", wrong), ("free", None), ("given up", given_up)):
        loop.inbox.put(IncomingMessage(name, "new_request", made))
    loop.turn()
    assert policy.admitted == ["free"]
    assert loop.pending == 4
    loop.inbox.put(IncomingMessage("slow", "stream_chunk", "more of its input"))
    loop.turn()
    loop.abort("given up")
    for made in (given_up, wrong, slow):
        made.call()
    loop.turn()
    assert policy.admitted == ["free", "slow"]
    [error] = loop.outbox.drain()
    assert (error.request_id, str(error.data)) == ("wrong", "params.writer.structured: is wrong")
    assert loop.pending == 2
    assert sorted(runner.released) == ["given up", "wrong"]


def test_a_step_that_fails_leaves_its_requests_as_they_were() -> None:
    request = ARRequest("r", OmniRequest(), [1], SamplingParams(logprobs=0), output_ids=[5], logprobs=[[(5, -1.0)]])

    def execute(batch: Any, forward: Any) -> Any:
        request.logprobs.append([(6, -2.0)])
        request.output_ids.append(6)
        raise ValueError("after sampling")

    with pytest.raises(ValueError, match="after sampling"):
        run_batch(SimpleNamespace(execute=execute), SimpleNamespace(requests=[request]), 100)  # type: ignore[arg-type]
    assert (request.output_ids, request.logprobs) == ([5], [[(5, -1.0)]])
