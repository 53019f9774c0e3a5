"""Long requests are computed aside, and the others do not wait for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling import Aside, AsideScheduler, IncomingMessage, LoopScheduler, OutgoingMessage
from omni_testing.scheduler import SchedulerConformance

PATIENCE = 20.0


class Bench:
    """A compute whose long requests wait for the test; ``held`` is set when they may end."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.begun = threading.Semaphore(0)

    def __call__(self, payload: StagePayload) -> Any:
        if is_long(payload):
            self.begun.release()
            assert self.held.wait(PATIENCE)
        if payload.data == "long bad":
            raise SystemExit("bad")
        return f"{payload.data}!"

    def wait(self, count: int) -> None:
        """Wait until so many long requests have begun."""
        for _ in range(count):
            assert self.begun.acquire(timeout=PATIENCE)


def is_long(payload: StagePayload) -> bool:
    return str(payload.data).startswith("long")


def message(name: str, data: Any) -> IncomingMessage:
    return IncomingMessage(name, "new_request", StagePayload(name, OmniRequest(), data))


@contextmanager
def running(bench: Bench, threads: int) -> Iterator[AsideScheduler]:
    scheduler = AsideScheduler(bench, is_long, threads)
    thread = threading.Thread(target=scheduler.start)
    thread.start()
    try:
        yield scheduler
    finally:
        bench.held.set()
        scheduler.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def out(scheduler: AsideScheduler) -> tuple[str, str, Any]:
    found = scheduler.outbox.get(PATIENCE)
    assert isinstance(found, OutgoingMessage)
    return found.request_id, found.type, found.data


def test_a_short_request_overtakes_long_ones_that_run_and_that_wait() -> None:
    bench = Bench()
    with running(bench, 2) as scheduler:
        for number in range(3):
            scheduler.inbox.put(message(f"l{number}", "long"))
        bench.wait(2)
        scheduler.inbox.put(message("s", "short"))
        assert out(scheduler) == ("s", "result", "short!")
        assert sorted(scheduler.running_computes()) == ["l0", "l1"]
        assert (scheduler.statistics()["running"], scheduler.statistics()["waiting"]) == (2, 1)
        bench.held.set()
        assert sorted(out(scheduler) for _ in range(3)) == [(f"l{number}", "result", "long!") for number in range(3)]


def test_long_requests_fail_alone() -> None:
    bench = Bench()
    bench.held.set()
    with running(bench, 1) as scheduler:
        scheduler.inbox.put(message("bad", "long bad"))
        scheduler.inbox.put(message("good", "long"))
        assert out(scheduler)[:2] == ("bad", "error")
        assert out(scheduler) == ("good", "result", "long!")


def test_nothing_is_heard_of_a_long_request_after_its_abort() -> None:
    bench = Bench()
    with running(bench, 1) as scheduler:
        scheduler.inbox.put(message("runs", "long"))
        bench.wait(1)
        scheduler.inbox.put(message("waits", "long"))
        scheduler.abort("runs")
        scheduler.abort("waits")
        scheduler.inbox.put(message("s", "short"))
        assert out(scheduler)[0] == "s"  # the loop has forgotten both by the next turn
        bench.held.set()
        scheduler.inbox.put(message("last", "long"))
        assert out(scheduler)[0] == "last"
        assert not scheduler.running_computes()


def test_nothing_new_is_begun_while_outputs_cannot_be_handed_on() -> None:
    bench = Bench()
    with running(bench, 1) as scheduler:
        scheduler.inbox.hold(True)
        scheduler.inbox.put(message("l", "long"))
        assert not bench.begun.acquire(timeout=0.05)
        scheduler.inbox.hold(False)
        bench.wait(1)


def test_each_further_thread_is_told_that_it_is_one_of_the_stage() -> None:
    bench, entered = Bench(), []
    scheduler = AsideScheduler(bench, is_long, 3)
    scheduler.enter_thread = lambda: entered.append(threading.current_thread().name)
    scheduler.stop()
    scheduler.start()
    assert len(set(entered)) == 3


class TestConformance(SchedulerConformance):
    def make(self) -> AsideScheduler:
        def compute(payload: StagePayload) -> Any:
            if payload.data == "long bad":
                raise SystemExit("bad")
            return payload.data

        return AsideScheduler(compute, is_long)

    def good(self, number: int) -> Any:
        return f"long {number}" if number % 2 else f"short {number}"

    def bad(self) -> Any:
        return "long bad"


def test_a_loop_computes_aside_and_is_woken() -> None:
    class Loop(LoopScheduler):
        def turn(self) -> bool:
            return self.inbox.get() is not None

    scheduler, bench, entered = Loop(), Bench(), list[int]()
    scheduler.enter_thread = lambda: entered.append(threading.get_ident())  # type: ignore[attr-defined]
    aside = Aside(scheduler, threads=2)
    payload = StagePayload("r", OmniRequest(), "long")
    made, bad = aside.submit("r", lambda: bench(payload)), aside.submit("bad", lambda: 1 // 0)
    bench.wait(1)
    assert isinstance(bad.exception(PATIENCE), ZeroDivisionError)
    assert list(aside.running) == ["r"]
    assert aside.cpu_seconds >= 0
    bench.held.set()
    assert made.result(PATIENCE) == "long!"
    assert [
        message.request_id for message in (scheduler.inbox.get(PATIENCE), scheduler.inbox.get(PATIENCE)) if message
    ] == ["", ""]
    aside.close()
    assert (aside.running, aside.cpu_seconds, len(entered) > 0) == ({}, 0, True)
