"""Requests that wait for their turn: in order, refused in time, and not hurt by a policy that fails."""

from __future__ import annotations

import math
from typing import Any

from attrs import define, field

from omni_core.coordinator.actions import Ended, Start
from omni_core.coordinator.turns import AdmittingMachine
from omni_core.errors import OverloadedError
from omni_core.protocol.messages import ErrorInfo, OmniRequest


@define
class OneAtATime:
    """A policy under which a request begins when the one before has had its first output; it waits two seconds at most."""

    waits_for: set[str] = field(factory=set)

    def begins(self, stages: frozenset[str], came: float, now: float) -> float:
        return math.inf if self.waits_for else now

    def latest(self, stages: frozenset[str], came: float) -> float:
        return came + 2.0

    def begun(self, name: str, stages: frozenset[str], came: float, now: float, *, is_heard: bool) -> None:
        self.waits_for.add(name)

    def heard(self, name: str, stage: str, now: float) -> None:
        self.waits_for.discard(name)

    def ended(self, name: str, now: float) -> None:
        self.waits_for.discard(name)


def machine(policy: Any) -> AdmittingMachine:
    return AdmittingMachine(policy=policy, terminal_stages=["out"])


def submit(requests: AdmittingMachine, name: str, now: float) -> list[Any]:
    return requests.submit(OmniRequest(name), name, wants_partial=True, now=now)[1]


def started(actions: list[Any]) -> list[str]:
    return [each.request.request_id for each in actions if isinstance(each, Start)]


def test_requests_begin_in_their_order_when_the_policy_says_so() -> None:
    requests = machine(OneAtATime())
    assert started(submit(requests, "a", 0.0)) == ["a"]
    assert [started(submit(requests, name, 0.5)) for name in ("b", "c")] == [[], []]
    assert started(requests.result("a", "out", 1, final=False, now=1.0)) == ["b"]
    assert started(requests.result("a", "out", 2, final=False, now=1.1)) == [], "only a first output is heard"
    assert started(requests.abort("b", 1.2)) == ["c"]


def test_the_next_one_begins_when_a_stage_has_failed_one_of_which_something_is_not_read() -> None:
    requests = machine(OneAtATime())
    for name in ("a", "b", "c"):
        submit(requests, name, 0.0)
    assert started(requests.result("a", "out", 1, final=False, now=1.0)) == ["b"]
    requests.failure("a", ErrorInfo("out", "ValueError", "wrong"), 1.1)
    assert started(requests.failure("b", ErrorInfo("out", "ValueError", "wrong"), 1.2)) == ["c"]


def test_a_request_that_waits_too_long_is_refused_and_may_be_asked_again() -> None:
    requests = machine(OneAtATime())
    submit(requests, "a", 0.0)
    submit(requests, "b", 0.0)
    due = requests.next_timer()
    assert due is not None
    (ended,) = [each for each in requests.clock(due) if isinstance(each, Ended)]
    assert isinstance(ended.request.error, OverloadedError)
    assert (requests.counts["refused"], requests.counts["admitted"], requests.in_flight) == (1, 1, 1)
    assert submit(requests, "b", due) == []


def test_what_a_policy_cannot_judge_begins_at_once() -> None:
    requests = machine(object())
    assert [started(submit(requests, name, 0.0)) for name in ("a", "b")] == [["a"], ["b"]]
