"""Bounded work whose results come in order, and what is kept when it ends early."""

from __future__ import annotations

import asyncio
import threading

import pytest

from omni_cli.batch.answering import WINDOW, answer_in_order


class Worker:
    """Answers numbers when told to."""

    def __init__(self) -> None:
        self.running: dict[int, asyncio.Event] = {}
        self.most = 0

    async def __call__(self, line: int) -> int:
        self.running[line] = asyncio.Event()
        self.most = max(self.most, len(self.running))
        try:
            await self.running[line].wait()
        finally:
            del self.running[line]
        return line


async def until(condition: object) -> None:
    while not condition():  # type: ignore[operator]
        await asyncio.sleep(0.001)


async def test_answers_are_in_order_and_no_more_than_a_few_run_at_once() -> None:
    worker, written = Worker(), list[int]()
    task = asyncio.ensure_future(answer_in_order(range(9), worker, written.extend, at_once=3))
    await until(lambda: len(worker.running) == 3)
    worker.running[2].set()
    await until(lambda: 3 in worker.running)
    assert written == [], "0 and 1 are not answered yet"
    while not task.done():
        for event in worker.running.values():
            event.set()
        await asyncio.sleep(0)
    await task
    assert written == [*range(9)]
    assert worker.most == 3


async def test_the_slowest_line_is_not_left_far_behind() -> None:
    worker, written = Worker(), list[int]()
    task = asyncio.ensure_future(answer_in_order(range(100), worker, written.extend, at_once=2))
    seen = 0
    while seen < 2 * WINDOW - 1:
        await until(lambda: 0 in worker.running)
        for line, event in worker.running.items():
            seen = max(seen, line)
            if line:
                event.set()
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert [*worker.running] == [0]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written == []


async def test_an_early_end_keeps_what_is_complete() -> None:
    written: list[int] = []

    async def answer(line: int) -> int:
        if line == 3:
            raise OSError("the pipeline is gone")
        if line > 3:
            await asyncio.sleep(60)
        return line

    with pytest.raises(OSError, match="gone"):
        await answer_in_order(range(9), answer, written.extend, at_once=4)
    assert written == [0, 1, 2]
    assert len(asyncio.all_tasks()) == 1


async def test_a_full_disk_ends_the_work() -> None:
    async def answer(line: int) -> int:
        return line

    def write(answers: list[int]) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        await answer_in_order(range(9), answer, write, at_once=4)
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancellation_during_a_write_keeps_the_order() -> None:
    written: list[int] = []
    begun, may_write = threading.Event(), threading.Event()
    worker = Worker()

    def write(answers: list[int]) -> None:
        if 0 in answers:
            begun.set()
            may_write.wait(30)
        written.extend(answers)

    task = asyncio.ensure_future(answer_in_order(range(3), worker, write, at_once=3))
    await until(lambda: len(worker.running) == 3)
    worker.running[0].set()
    await until(begun.is_set)
    worker.running[1].set()
    await until(lambda: 1 not in worker.running)
    task.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written == [0, 1]


async def test_nothing_is_written_after_a_write_that_failed() -> None:
    written: list[int] = []
    begun, may_fail = threading.Event(), threading.Event()
    worker = Worker()

    def write(answers: list[int]) -> None:
        if 0 in answers:
            begun.set()
            may_fail.wait(30)
            raise OSError("no space left")
        written.extend(answers)

    task = asyncio.ensure_future(answer_in_order(range(3), worker, write, at_once=3))
    await until(lambda: len(worker.running) == 3)
    worker.running[0].set()
    await until(begun.is_set)
    worker.running[1].set()
    await until(lambda: 1 not in worker.running)
    may_fail.set()
    with pytest.raises(OSError, match="no space"):
        await task
    assert written == []
