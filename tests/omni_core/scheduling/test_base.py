"""The queue between a stage and its scheduler: order, waiting, holding back, and its end."""

from __future__ import annotations

import threading
from typing import Any

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
