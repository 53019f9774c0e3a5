"""Deadlines of one stage's requests, and the cost of steps that is learnt."""

from __future__ import annotations

import pytest

from omni_core.errors import ConfigError, InvalidRequestError
from omni_core.protocol.messages import OmniRequest
from omni_torch.loop.step_cost import StepCost
from omni_torch.vocoder.deadlines import Deadlines, policy_of


def test_a_request_is_due_when_its_sound_has_been_played() -> None:
    policy = Deadlines()
    policy.begin("r", OmniRequest(), 10.0)
    assert policy.due("r", 10.0) == 10.5
    assert policy.may_wait("r", 10.0)
    policy.emitted("r", 0.32, 11.0)
    policy.emitted("r", 1.0, 11.1)
    assert policy.due("r", 11.2) == pytest.approx(12.32)
    assert not policy.may_wait("r", 11.2)
    policy.emitted("r", 1.0, 20.0)  # late: its listener has waited
    assert policy.due("r", 20.0) == 21.0
    policy.end("r")
    policy.end("r")


def test_a_first_output_that_is_late_comes_before_what_has_time_and_after_what_has_none() -> None:
    policy = Deadlines(margin=0.25, patience=30.0)
    for name, ahead in (("short", 0.1), ("long", 2.0)):
        policy.begin(name, OmniRequest(), 0.0)
        policy.emitted(name, ahead, 5.0)
    policy.begin("new", OmniRequest(), 0.0)
    assert sorted(["long", "new", "short"], key=lambda name: policy.due(name, 5.0)) == ["short", "new", "long"]
    assert policy.due("new", 100.0) == 30.0, "it has waited long enough"
    assert not policy.may_wait("new", 100.0)


def test_requests_say_when_they_want_an_answer() -> None:
    policy = Deadlines()
    policy.begin("soon", OmniRequest(metadata={"first_within": 0.1}), 0.0)
    policy.begin("later", OmniRequest(metadata={"deadline": 60}), 0.0)
    assert policy.due("soon", 0.0) == 0.25, "never before what would run dry within the margin"
    policy.emitted("later", 0.1, 1.0)
    assert policy.due("later", 1.0) == 60.0
    for name, value in (("first_within", -1), ("deadline", "soon"), ("deadline", True)):
        with pytest.raises(InvalidRequestError, match=f"metadata.{name}: must be a number of seconds, 0 or more"):
            policy.begin("bad", OmniRequest(metadata={name: value}), 0.0)


def test_a_policy_is_named_by_its_reference() -> None:
    assert policy_of(None) is None
    assert isinstance(policy_of("omni_torch.vocoder.deadlines:Deadlines"), Deadlines)


@pytest.mark.parametrize("reference", ["omni_torch.vocoder.deadlines:FIRST_WITHIN", "json:loads", "builtins:dict", 5])
def test_what_makes_no_policy_is_refused_by_name(reference: object) -> None:
    with pytest.raises(ConfigError, match=rf"{reference}.*"):
        policy_of(reference)  # type: ignore[arg-type]


class OfFiveMethods:
    """A policy of before first sounds were kept."""

    begin = due = emitted = may_wait = end = Deadlines.end


def test_a_policy_that_lacks_a_method_is_told_which() -> None:
    with pytest.raises(ConfigError, match=r"it made a OfFiveMethods, which lacks starts$"):
        policy_of(f"{__name__}:OfFiveMethods")


def test_costs_are_learnt_from_steps_and_follow_a_change() -> None:
    cost = StepCost(2)
    assert cost.seconds(5, 100) == 0.0
    for factor in (1.0, 3.0):
        for step in range(200):
            rows, positions = 1 + step % 7, 10 * (step % 4)
            cost.observe([rows, positions], factor * (0.002 + 0.001 * rows + 0.0001 * positions))
        assert cost.seconds(10, 50) == pytest.approx(factor * 0.017, rel=0.03)


def test_counts_that_cannot_be_told_apart_cost_no_less_than_nothing() -> None:
    cost = StepCost(2)
    for rows in (4, 4, 4):
        cost.observe([rows, 0], 0.01)
    assert cost.seconds(4, 0) == pytest.approx(0.01, rel=0.01)
    for rows, seconds in ((1, 0.03), (2, 0.02), (3, 0.01)):
        cost.observe([rows, 0], seconds)
    assert min(cost.coefficients()) >= 0
