"""The choice of replicas."""

from __future__ import annotations

from omni_core.coordinator import ReplicaChoice, ReplicatedGroup
from omni_core.protocol.messages import OmniRequest


def test_replicas_serve_in_turn() -> None:
    choice = ReplicaChoice([ReplicatedGroup("g", ["a", "b"])], lambda group: [0, 1])
    assert [choice(OmniRequest()) for _ in range(3)] == [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": 0, "b": 0}]


def test_equal_keys_keep_their_replica_while_it_lives() -> None:
    alive = [0, 1, 2]
    choice = ReplicaChoice([ReplicatedGroup("g", ["a"], "session")], lambda group: alive)
    requests = [OmniRequest(metadata={"session": f"s{number}"}) for number in range(60)]
    before = [choice(each)["a"] for each in requests]
    assert before == [choice(each)["a"] for each in requests]
    assert set(before) == {0, 1, 2}
    alive.remove(1)
    after = [choice(each)["a"] for each in requests]
    assert all(new == old for old, new in zip(before, after, strict=True) if old != 1)
    assert 1 not in after


def test_a_group_without_replicas_does_not_refuse_a_request_that_may_never_need_it() -> None:
    choice = ReplicaChoice(
        [ReplicatedGroup("dead", ["a"]), ReplicatedGroup("alive", ["b"])], lambda group: [] if group == "dead" else [1]
    )
    assert choice(OmniRequest()) == {"a": 0, "b": 1}
