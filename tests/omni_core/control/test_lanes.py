"""Lanes: the order of steps, where they run, and what happens to them when one fails or its lane is cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from functools import partial

import pytest

from omni_core.control.lanes import Lanes, in_task, in_thread


class Watched:
    """Lanes with what they did: errors by key, how often a lane became free, and the steps that ran."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, str]] = []
        self.freed = 0
        self.log: list[str] = []
        self.lock = threading.RLock()
        self.lanes: Lanes[str] = Lanes(lambda key, error: self.errors.append((key, repr(error))), self.lock, self._free)

    def _free(self) -> None:
        self.freed += 1

    async def step(self, name: str, gate: asyncio.Event | None = None, error: BaseException | None = None) -> None:
        self.log.append(f"{name} begins")
        if gate is not None:
            await in_task()
            await gate.wait()
        if error is not None:
            raise error
        self.log.append(f"{name} ends")

    def run(self, key: str, name: str, gate: asyncio.Event | None = None, error: BaseException | None = None) -> None:
        self.lanes.run(key, partial(self.step, name, gate, error))


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_synchronous_step_is_done_when_run_returns() -> None:
    watched, tasks = Watched(), asyncio.all_tasks()
    watched.run("a", "one")
    assert watched.log == ["one begins", "one ends"]
    assert len(watched.lanes) == 0
    assert asyncio.all_tasks() == tasks
    assert watched.freed == 0


async def test_steps_of_a_key_run_in_order_and_other_keys_do_not_wait() -> None:
    watched, gate = Watched(), asyncio.Event()
    watched.run("a", "one", gate)
    watched.run("a", "two")
    watched.run("b", "three")
    assert watched.log == ["one begins", "three begins", "three ends"]
    assert "a" in watched.lanes
    assert "b" not in watched.lanes
    gate.set()
    await turns()
    assert watched.log[3:] == ["one ends", "two begins", "two ends"]
    assert (len(watched.lanes), watched.freed) == (0, 1)


async def test_a_failure_at_once_goes_to_on_error_and_frees_the_lane() -> None:
    watched = Watched()
    watched.run("a", "one", error=SystemExit(3))
    watched.run("a", "two")
    assert watched.errors == [("a", "SystemExit(3)")]
    assert watched.log == ["one begins", "two begins", "two ends"]


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), asyncio.CancelledError()], ids=repr)
async def test_a_failure_after_a_wait_drops_the_steps_behind_it(error: BaseException) -> None:
    watched, gate = Watched(), asyncio.Event()
    watched.run("a", "one", gate, error)
    watched.run("a", "two")
    gate.set()
    await turns()
    assert watched.errors == [("a", repr(error))]
    assert watched.log == ["one begins"]
    assert (len(watched.lanes), watched.freed) == (0, 1)


async def test_cancel_drops_the_running_step_and_those_behind_it() -> None:
    watched, gate = Watched(), asyncio.Event()
    watched.run("a", "one", gate)
    watched.run("a", "two")
    await turns()
    watched.lanes.cancel("a")
    watched.lanes.cancel("a")
    gate.set()
    await turns()
    assert watched.log == ["one begins"]
    assert (watched.errors, watched.freed) == ([], 1)
    watched.run("a", "three")
    assert watched.log[1:] == ["three begins", "three ends"]


async def test_a_step_that_cancels_its_own_lane_ends_but_none_follows_it() -> None:
    watched, gate = Watched(), asyncio.Event()

    async def cancels() -> None:
        await in_task()
        await gate.wait()
        watched.lanes.cancel("a")
        watched.run("a", "three")
        await watched.step("one")

    watched.lanes.run("a", cancels)
    watched.run("a", "two")
    gate.set()
    await turns()
    assert watched.log == ["three begins", "three ends", "one begins", "one ends"]
    assert len(watched.lanes) == 0


async def test_the_lock_is_held_while_a_step_runs_and_free_while_it_waits() -> None:
    watched, gate = Watched(), asyncio.Event()
    free: list[bool] = []

    def look() -> None:
        free.append(watched.lock.acquire(blocking=False))
        if free[-1]:
            watched.lock.release()

    def look_from_a_thread() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    async def step() -> None:
        look_from_a_thread()
        await in_task()
        await gate.wait()
        look_from_a_thread()

    watched.lanes.run("a", step)
    await turns()
    look_from_a_thread()
    gate.set()
    await turns()
    assert free == [False, True, False]


async def test_a_step_begun_in_another_thread_continues_in_a_task_of_the_loop() -> None:
    watched = Watched()
    where: list[object] = []

    async def step() -> None:
        where.append(threading.get_ident())
        await in_task()
        where.append(threading.get_ident())
        async with asyncio.timeout(10):  # needs a task
            where.append(asyncio.current_task() is not None)

    thread = threading.Thread(target=watched.lanes.run, args=("a", step))
    thread.start()
    await asyncio.to_thread(thread.join)
    await turns()
    assert where[0] not in (where[1], None)
    assert where[1:] == [threading.get_ident(), True]


async def test_a_step_that_is_cancelled_on_its_way_to_the_loop_ends_there() -> None:
    watched = Watched()
    ended: list[str] = []

    async def step() -> None:
        try:
            await in_task()
            ended.append("went on")
        finally:
            ended.append("ended")

    thread = threading.Thread(target=watched.lanes.run, args=("a", step))
    thread.start()
    thread.join()
    watched.lanes.cancel("a")
    await turns()
    assert ended == ["ended"]
    assert watched.errors == []


async def test_a_failed_step_keeps_no_reference() -> None:
    class Payload:
        pass

    def failed() -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(ValueError("bad"))
        return future

    lanes: Lanes[str] = Lanes(lambda key, error: None, threading.RLock())
    payload = Payload()
    kept = weakref.ref(payload)

    async def step(payload: Payload) -> None:
        await in_task()
        await asyncio.sleep(0)
        await failed()

    lanes.run("a", partial(step, payload))
    del payload
    gc.disable()
    try:
        await turns()
        assert kept() is None
    finally:
        gc.enable()


async def test_in_thread_leaves_the_event_loop_free() -> None:
    watched = Watched()
    thread: list[int] = []

    async def step() -> None:
        thread.append(await in_thread(threading.get_ident))

    watched.lanes.run("a", step)
    while "a" in watched.lanes:
        await asyncio.sleep(0.001)
    assert thread != [threading.get_ident()]
