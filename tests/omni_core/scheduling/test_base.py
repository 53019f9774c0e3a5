"""The queue between a stage and its scheduler: order, waiting, holding back, and its end."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest

from omni_core.scheduling.base import MessageQueue


def filled(*items: int) -> MessageQueue[int]:
    queue: MessageQueue[int] = MessageQueue()
    for item in items:
        queue.put(item)
    return queue


def test_items_come_in_their_order_one_by_one_or_together() -> None:
    queue = filled(1, 2, 3, 4, 5)
    assert (queue.get(), queue.drain(2), queue.drain(), queue.drain(), len(queue)) == (1, [2, 3], [4, 5], [], 0)


def test_a_reader_waits_for_an_item_and_gives_up_at_its_timeout() -> None:
    queue = filled()
    assert queue.get(0.01) is None
    got: list[int | None] = []
    reader = threading.Thread(target=lambda: got.append(queue.get(10)))
    reader.start()
    queue.put(7)
    reader.join(10)
    assert got == [7]


def test_a_held_queue_looks_empty_and_wakes_its_reader_when_it_is_let_go() -> None:
    queue = filled(1)
    queue.hold(True)
    assert (queue.get(0.01), queue.drain(), len(queue)) == (None, [], 1)
    got: list[int | None] = []
    reader = threading.Thread(target=lambda: got.append(queue.get(10)))
    reader.start()
    queue.hold(False)
    reader.join(10)
    assert got == [1]


def test_a_closed_queue_gives_what_it_has_and_takes_no_more() -> None:
    queue = filled(1)
    woken: list[str] = []
    queue.on_put = lambda: woken.append("put")
    queue.close()
    queue.put(2)
    assert (queue.closed, queue.get(), queue.get(), woken) == (True, 1, None, ["put"])


def test_close_wakes_a_reader_that_waits_for_ever() -> None:
    queue, got = filled(), list[int | None]()
    reader = threading.Thread(target=lambda: got.append(queue.get()))
    reader.start()
    queue.close()
    reader.join(10)
    assert got == [None]


def test_unwanted_items_are_removed_and_the_others_keep_their_order() -> None:
    queue = filled(1, 2, 3, 4)
    queue.remove(lambda item: item % 2 == 0)
    assert queue.drain() == [1, 3]


def test_a_tap_sees_what_is_put_and_taken_and_a_callback_follows_each_put() -> None:
    queue, seen = filled(), list[Any]()
    queue.tap = lambda action, items: seen.append((action, items))
    queue.on_put = lambda: seen.append(len(queue))
    queue.put(1)
    queue.put(2)
    queue.get()
    queue.drain()
    assert seen == [("put", [1]), 1, ("put", [2]), 2, ("take", [1]), ("take", [2])]


def test_a_put_waits_while_a_bounded_queue_is_full_but_not_in_the_thread_that_drains_it() -> None:
    queue: MessageQueue[int] = MessageQueue()
    queue.bound(2, threading.get_ident())
    for number in range(3):
        queue.put(number)
    assert queue.is_full
    done: list[int] = []

    def put() -> None:
        queue.put(3)
        done.append(3)

    putting = threading.Thread(target=put)
    putting.start()
    putting.join(0.05)
    assert not done
    assert queue.drain() == [0, 1, 2]
    putting.join(5)
    assert (done, queue.drain()) == ([3], [3])


@pytest.mark.parametrize("how", ["unbound", "closed"])
def test_a_put_waits_no_longer_once_a_queue_is_unbound_or_closed(how: str) -> None:
    queue: MessageQueue[int] = MessageQueue()
    queue.put(0)
    queue.bound(1)
    putting = threading.Thread(target=queue.put, args=(1,), daemon=True)
    putting.start()
    queue.bound(None) if how == "unbound" else queue.close()
    putting.join(5)
    assert not putting.is_alive()


def test_what_is_taken_is_told() -> None:
    queue: MessageQueue[int] = MessageQueue()
    taken: list[int] = []
    queue.on_take = taken.extend
    for number in range(3):
        queue.put(number)
    queue.get()
    queue.drain()
    assert taken == [0, 1, 2]


def test_a_queue_tells_when_it_was_read_and_whether_a_reader_waits() -> None:
    queue: MessageQueue[int] = MessageQueue()
    before = queue.read_at
    queue.put(1)
    assert queue.read_at == before
    assert queue.get() == 1
    assert before < queue.read_at < time.monotonic()
    waiting = threading.Thread(target=queue.get)
    waiting.start()
    while queue.read_at < math.inf:
        time.sleep(0.001)
    queue.put(2)
    waiting.join(5)
    assert queue.read_at < math.inf
    assert queue.get(0.001) is None
    assert queue.read_at < math.inf
