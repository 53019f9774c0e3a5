"""A process's view of itself: its running computes, and the lack of memory."""

from __future__ import annotations

import threading

import pytest

from omni_core.errors import ConfigError
from omni_core.processes.watch import ComputeWatch, MemoryWatch
from omni_core.protocol.messages import OmniRequest, RunningCompute, StagePayload
from omni_core.protocol.specs import StageSpec
from omni_core.scheduling.base import IncomingMessage
from omni_core.scheduling.simple import SimpleScheduler


def spec(**fields: object) -> StageSpec:
    return StageSpec(name="s", factory="m:f", **fields)  # type: ignore[arg-type]


def test_running_computes_are_reported_until_they_end() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def compute(payload: StagePayload) -> None:
        begun.set()
        may_end.wait()

    scheduler = SimpleScheduler(compute)
    watch = ComputeWatch(lambda: 1e9)
    watch.add(spec(), scheduler)
    assert watch.computes() == []
    thread = threading.Thread(target=scheduler.start)
    thread.start()
    scheduler.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", OmniRequest())))
    begun.wait()
    (running,) = watch.computes()
    assert (running.stage, running.request_id) == ("s", "r")
    assert running.seconds > 1e8
    scheduler.stop()
    may_end.set()
    thread.join()
    assert watch.computes() == []


def test_seconds_are_those_since_the_begin() -> None:
    class Reports(SimpleScheduler):
        def running_computes(self) -> dict[str, float]:
            return {"a": 3.0, "b": 7.5}

    watch = ComputeWatch(lambda: 10.0)
    watch.add(spec(), Reports(lambda payload: None))
    assert watch.computes() == [RunningCompute("s", "a", 7.0), RunningCompute("s", "b", 2.5)]


def test_a_limit_needs_a_scheduler_that_reports() -> None:
    class Silent:
        pass

    watch = ComputeWatch()
    watch.add(spec(), Silent())  # type: ignore[arg-type]
    assert watch.computes() == []
    with pytest.raises(ConfigError, match=r"stages\[s\].compute_timeout: Silent does not report"):
        watch.add(spec(compute_timeout=1.0), Silent())  # type: ignore[arg-type]


def test_memory_errors_in_a_row_end_the_process_if_there_is_no_memory() -> None:
    watch = MemoryWatch(lambda: True)
    assert [watch.must_end("MemoryError", lambda: 5) for _ in range(3)] == [False, False, True]


def test_memory_errors_between_successes_do_not() -> None:
    watch = MemoryWatch(lambda: True)
    assert not any(watch.must_end("MemoryError", lambda n=n: n) for n in range(9))  # type: ignore[misc]


def test_memory_errors_do_not_while_there_is_memory() -> None:
    watch = MemoryWatch(lambda: False)
    assert not any(watch.must_end("MemoryError", lambda: 0) for _ in range(9))


def test_other_errors_do_not_count() -> None:
    watch = MemoryWatch(lambda: True)
    assert not any(watch.must_end("ValueError", lambda: 0) for _ in range(9))
