"""Fan-in: payloads are held until those of the active subset have come."""

from __future__ import annotations

from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.stage.fan_in import FanIn


def payload(data: Any) -> StagePayload:
    return StagePayload("r", OmniRequest(), data)


def merge(payloads: dict[str, StagePayload]) -> StagePayload:
    return payload({name: each.data for name, each in payloads.items()})


def fan_in(wait_for_fn: Any = None) -> FanIn:
    return FanIn("join", ["a", "b", "c"], wait_for_fn, merge)


def test_payloads_are_merged_in_the_order_of_wait_for() -> None:
    inputs = fan_in()
    assert inputs.missing == ["a", "b", "c"]
    assert inputs.add("c", payload(3)) is None
    assert inputs.add("a", payload(1)) is None
    assert inputs.missing == ["b"]
    merged = inputs.add("b", payload(2))
    assert merged is not None
    assert list(merged.data.items()) == [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.parametrize("subset", ["a", ["a"], ("a",), {"a"}])
def test_a_subset_that_is_complete_when_it_is_chosen_is_merged_at_once(subset: Any) -> None:
    inputs = fan_in(lambda request_id, source, payload: subset if source == "c" else None)
    assert inputs.add("a", payload(1)) is None
    assert inputs.missing == ["b", "c"]
    merged = inputs.add("c", payload(3))
    assert merged is not None
    assert merged.data == {"a": 1}


@pytest.mark.parametrize("subset", [[], "d", ["a", "d"], 5])
def test_an_invalid_subset_is_an_error(subset: Any) -> None:
    with pytest.raises(ConfigError, match=r"stages\[join\].wait_for_fn returned"):
        fan_in(lambda *_: subset).add("a", payload(1))


def test_a_function_that_never_chooses_is_refused_at_the_last_payload() -> None:
    inputs = fan_in(lambda *_: None)
    inputs.add("a", payload(1))
    inputs.add("b", payload(2))
    with pytest.raises(ConfigError, match="returned None for every payload"):
        inputs.add("c", payload(3))
