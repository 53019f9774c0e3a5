"""Fair queuing and budgets, without a clock of their own."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_serve.fair_queue import Bucket, FairQueue


def test_a_key_that_floods_does_not_delay_another() -> None:
    queue: FairQueue[str] = FairQueue(room=1)
    assert queue.enter("greedy", 1.0, "g0")
    for number in range(1, 6):
        assert not queue.enter("greedy", 1.0, f"g{number}")
    assert not queue.enter("modest", 1.0, "m0")
    assert [queue.leave() for _ in range(3)] == ["g1", "m0", "g2"]


def test_shares_are_kept() -> None:
    queue: FairQueue[str] = FairQueue(room=1)
    queue.enter("a", 1.0, "a")
    for _ in range(40):
        queue.enter("a", 1.0, "a")
        queue.enter("b", 3.0, "b")
    served = Counter(queue.leave() for _ in range(40))
    assert served["b"] == pytest.approx(30, abs=1)


def test_a_request_can_give_up() -> None:
    queue: FairQueue[str] = FairQueue(room=1)
    queue.enter("a", 1.0, "a0")
    queue.enter("a", 1.0, "a1")
    queue.enter("b", 1.0, "b0")
    assert queue.give_up("a", "a1")
    assert not queue.give_up("a", "a1")
    assert queue.leave() == "b0"
    assert queue.leave() is None
    assert (queue.running, queue.waiting) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60), st.integers(1, 3))
def test_nobody_is_forgotten_and_room_is_kept(steps: list[tuple[str, bool]], room: int) -> None:
    queue: FairQueue[int] = FairQueue(room)
    entered: set[int] = set()
    begun: set[int] = set()
    for number, (key, leaves) in enumerate(steps):
        if leaves and queue.running:
            following = queue.leave()
            if following is not None:
                begun.add(following)
        else:
            entered.add(number)
            if queue.enter(key, 1.0, number):
                begun.add(number)
        assert queue.running <= room
        assert queue.waiting == len(entered - begun)
        assert queue.running == room or not queue.waiting
    while queue.running:
        following = queue.leave()
        if following is not None:
            begun.add(following)
    assert begun == entered


def test_a_budget_refills_and_may_be_overdrawn() -> None:
    bucket = Bucket(60.0)
    assert bucket.wait(1.0, 0.0) == 0
    bucket.take(90.0, 0.0)
    assert bucket.wait(1.0, 0.0) == pytest.approx(31.0)
    assert bucket.wait(1.0, 31.0) == 0
    assert bucket.wait(1.0, 1000.0) == 0
    bucket.take(60.0, 1000.0)
    assert bucket.wait(1.0, 1000.0) == pytest.approx(1.0)


def test_a_key_that_comes_back_at_once_does_not_overtake_those_that_wait() -> None:
    queue: FairQueue[str] = FairQueue(room=1)
    queue.enter("a", 1.0, "a")
    for _ in range(6):
        queue.enter("b", 1.0, "b")
    queue.enter("a", 1.0, "a")
    served = []
    for _ in range(10):
        served.append(queue.leave())
        if served[-1] == "a":
            queue.enter("a", 1.0, "a")
    assert Counter(served) == {"a": 5, "b": 5}
