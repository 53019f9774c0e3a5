"""The choice of replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from omni_core.coordinator import ReplicaChoice, ReplicatedGroup
from omni_core.coordinator.replicas import Load, expected_work, least_busy, least_work
from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest

GROUP = "g"


def text(length: int) -> OmniRequest:
    return OmniRequest({"messages": [{"role": "user", "content": "x" * length}]})


def chosen(choice: ReplicaChoice, request: OmniRequest | None = None, name: str = "r") -> int:
    (number,) = set(choice.place(name, request or OmniRequest()).values())
    return number


def test_replicas_serve_in_turn() -> None:
    choice = ReplicaChoice([ReplicatedGroup(GROUP, ["a", "b"])], lambda group: {0: 0, 1: 1})
    placements = [choice.place("r", OmniRequest()) for _ in range(3)]
    assert placements == [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": 0, "b": 0}]


def test_equal_keys_keep_their_replica_while_it_lives() -> None:
    alive = {0: 0, 1: 1, 2: 2}
    choice = ReplicaChoice([ReplicatedGroup(GROUP, ["a"], "session")], lambda group: alive)
    requests = [OmniRequest(metadata={"session": f"s{number}"}) for number in range(60)]
    before = [chosen(choice, each) for each in requests]
    assert before == [chosen(choice, each) for each in requests]
    assert set(before) == {0, 1, 2}
    del alive[1]
    after = [chosen(choice, each) for each in requests]
    assert all(new == old for old, new in zip(before, after, strict=True) if old != 1)
    assert 1 not in after


def test_the_keys_of_a_unit_that_is_replaced_are_its_successors() -> None:
    alive = {0: 0, 1: 1, 2: 2}
    choice = ReplicaChoice([ReplicatedGroup(GROUP, ["a"], "session")], lambda group: alive)
    requests = [OmniRequest(metadata={"session": f"s{number}"}) for number in range(60)]
    before = [chosen(choice, each) for each in requests]
    alive[1] = 7
    assert [chosen(choice, each) for each in requests] == [7 if each == 1 else each for each in before]


def test_a_group_without_replicas_does_not_refuse_a_request_that_may_never_need_it() -> None:
    choice = ReplicaChoice(
        [ReplicatedGroup("dead", ["a"]), ReplicatedGroup("alive", ["b"])],
        lambda group: {} if group == "dead" else {1: 1},
    )
    assert choice.place("r", OmniRequest()) == {"a": 0, "b": 1}


def test_the_replica_with_the_fewest_requests_is_chosen() -> None:
    choice = ReplicaChoice([ReplicatedGroup(GROUP, ["a"], None, least_busy)], lambda group: {0: 0, 1: 1, 2: 2})
    assert [chosen(choice, name=f"r{number}") for number in range(5)] == [0, 1, 2, 0, 1]
    choice.left("r1")
    choice.left("r1")  # a second end of the same attempt counts nothing
    choice.left("r4")
    assert [chosen(choice, name=f"s{number}") for number in range(3)] == [1, 2, 1]


def test_an_idle_replica_that_was_used_least_comes_first() -> None:
    choice = ReplicaChoice([ReplicatedGroup(GROUP, ["a"], None, least_busy)], lambda group: {0: 0, 1: 1})
    found = []
    for number in range(4):
        found.append(chosen(choice, name=str(number)))
        choice.left(str(number))
    assert found == [0, 1, 0, 1]


def test_cost_is_the_expected_work_of_what_a_replica_has() -> None:
    choice = ReplicaChoice([ReplicatedGroup(GROUP, ["a"], None, least_work)], lambda group: {0: 0, 1: 1})
    assert chosen(choice, text(1000), "long") == 0
    assert [chosen(choice, text(100), f"short {number}") for number in range(5)] == [1] * 5
    choice.left("long")
    assert [chosen(choice, text(100), f"later {number}") for number in range(3)] == [0] * 3


def test_the_work_function_of_a_pipeline_decides() -> None:
    group = ReplicatedGroup(GROUP, ["a"], None, least_work, lambda request: float(request.params["seconds"]))
    choice = ReplicaChoice([group], lambda group: {0: 0, 1: 1})
    assert chosen(choice, OmniRequest(params={"seconds": 5}), "long") == 0
    assert [chosen(choice, OmniRequest(params={"seconds": 1}), str(number)) for number in range(4)] == [1] * 4


def test_requests_with_a_key_count_as_load_for_the_others() -> None:
    alive = {0: 0, 1: 1}
    choice = ReplicaChoice([ReplicatedGroup(GROUP, ["a"], "session", least_busy)], lambda group: alive)
    kept = chosen(choice, OmniRequest(metadata={"session": "s"}), "kept")
    assert chosen(choice, OmniRequest(), "free") != kept


def test_a_replica_that_has_left_is_forgotten() -> None:
    alive = {0: 0, 1: 1}
    choice = ReplicaChoice([ReplicatedGroup(GROUP, ["a"], None, least_busy)], lambda group: alive)
    chosen(choice, name="r")
    alive[0] = 2
    choice.left("r")
    choice.drop(GROUP, 0)
    assert chosen(choice, name="s") == 2


def test_a_balance_of_ones_own_gets_the_loads_and_must_choose_one_of_them() -> None:
    seen: list[Sequence[Load]] = []

    def last(request: OmniRequest, loads: Sequence[Load]) -> int:
        seen.append([*loads])
        return 9 if request.params.get("wrong") else loads[-1].replica

    choice = ReplicaChoice([ReplicatedGroup(GROUP, ["a"], None, last)], lambda group: {0: 4, 1: 5})
    assert chosen(choice) == 5
    assert [load.replica for load in seen[0]] == [4, 5]
    with pytest.raises(ConfigError, match=r"balance of g: it chose 9; there are \[4, 5\]"):
        choice.place("r", OmniRequest(params={"wrong": True}))


def test_a_group_that_joins_later_is_chosen_for_from_then_on() -> None:
    choice = ReplicaChoice([], lambda group: {0: 3})
    assert choice.place("r", OmniRequest()) == {}
    choice.add(ReplicatedGroup(GROUP, ["a"]))
    assert choice.place("r", OmniRequest()) == {"a": 3}


def test_expected_work_is_the_length_of_all_texts() -> None:
    parts = [{"type": "text", "text": "abcd"}, {"type": "image", "image": "/a/very/long/path"}]
    messages = [{"role": "system", "content": "ab"}, {"role": "user", "content": parts}]
    assert expected_work(OmniRequest({"messages": messages})) == 7
    assert expected_work(OmniRequest("abc")) == 4
    assert expected_work(OmniRequest({"messages": 7})) == 1
    assert expected_work(OmniRequest()) == 1


@pytest.mark.parametrize("work", [float("nan"), float("inf"), -1.0, "much", 10**400])
def test_work_that_is_no_number_fails_its_request_and_spoils_no_sum(work: Any) -> None:
    given: list[Any] = [work, 2.0]
    group = ReplicatedGroup("g", ["s"], balance=least_work, work=lambda request: given.pop(0))
    choice = ReplicaChoice([group], lambda name: {0: 0, 1: 1})
    with pytest.raises((ConfigError, ValueError, OverflowError)):
        choice.place("bad", OmniRequest())
    assert choice.place("good", OmniRequest()) == {"s": 0}
    assert choice._load("g", 0).work == 2.0
    assert choice._load("g", 0).requests == 1
