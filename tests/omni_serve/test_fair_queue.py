"""Fair queuing and budgets, without a clock of their own."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_serve.fair_queue import Bucket, FairQueue

ALL = 100


class Queue(FairQueue[str]):
    """A queue of requests that are called by their key and a number."""

    def come(self, request: str, share: float = 1.0, most: int = ALL) -> bool:
        return self.enter(request[0], share, request, most)

    def end(self, key: str) -> str | None:
        """End a request of a key; return the one that runs next."""
        following = self.leave(key)
        if following is None:
            return None
        assert following[0] == following[1][0]
        return following[1]


def test_a_key_that_floods_does_not_delay_another() -> None:
    queue = Queue(room=1)
    assert queue.come("g0")
    for number in range(1, 6):
        assert not queue.come(f"g{number}")
    assert not queue.come("m0")
    assert [queue.end(key) for key in "ggm"] == ["g1", "m0", "g2"]


def test_shares_are_kept() -> None:
    queue, running = Queue(room=1), "a"
    queue.come("a")
    for _ in range(40):
        queue.come("a")
        queue.come("b", 3.0)
    served: Counter[str] = Counter()
    for _ in range(40):
        running = queue.end(running) or ""
        served[running] += 1
    assert served["b"] == pytest.approx(30, abs=1)


def test_a_request_can_give_up() -> None:
    queue = Queue(room=1)
    for each in ("a0", "a1", "b0"):
        queue.come(each)
    assert queue.give_up("a", "a1")
    assert not queue.give_up("a", "a1")
    assert queue.end("a") == "b0"
    assert queue.end("b") is None
    assert (queue.running, queue.waiting) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_nobody_is_forgotten_and_room_is_kept(steps: list[tuple[str, bool]], room: int, most: int) -> None:
    queue = Queue(room)
    entered: set[str] = set()
    begun: set[str] = set()
    running: list[str] = []

    def end(key: str) -> None:
        running.remove(key)
        following = queue.end(key)
        if following is not None:
            begun.add(following)
            running.append(following[0])

    for number, (key, leaves) in enumerate(steps):
        if leaves and running:
            end(running[number % len(running)])
        else:
            request = f"{key}{number}"
            entered.add(request)
            if queue.come(request, most=most):
                begun.add(request)
                running.append(key)
        assert queue.running == len(running) <= room
        assert queue.waiting == len(entered - begun) == sum(map(queue.waiting_of, "abc"))
        counts = Counter(running)
        assert max(counts.values(), default=0) <= most
        assert queue.running == room or all(counts[each[0]] == most for each in entered - begun)
    while running:
        end(running[0])
    assert begun == entered
    assert not queue.of_key


def test_a_key_leaves_places_for_others() -> None:
    queue = Queue(room=4)
    assert [queue.come(f"a{number}", most=3) for number in range(5)] == [True, True, True, False, False]
    assert queue.come("b0", most=3)
    assert not queue.come("b1", most=3)
    assert queue.end("b") == "b1"
    assert queue.end("b") is None  # a has what it may have
    assert queue.end("a") == "a3"


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
    queue = Queue(room=1)
    for each in "abbbbbba":
        queue.come(each)
    served, running = [], "a"
    for _ in range(10):
        running = queue.end(running) or ""
        served.append(running)
        if running == "a":
            queue.come("a")
    assert Counter(served) == {"a": 5, "b": 5}
