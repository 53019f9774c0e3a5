"""The thread of a stage's scheduler."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from omni_core.protocol.specs import StageSpec
from omni_core.stage.thread import StageThread


class Loop:
    """A scheduler that runs until it is stopped, or ends by itself."""

    def __init__(self, error: BaseException | None = None, *, ends: bool = False) -> None:
        self.error, self.stopped = error, threading.Event()
        if ends:
            self.stopped.set()

    def start(self) -> None:
        if self.error is not None:
            raise self.error
        assert self.stopped.wait(5)

    def stop(self) -> None:
        self.stopped.set()


class Thread(StageThread):
    def __init__(self, scheduler: Any, **fields: Any) -> None:
        super().__init__(StageSpec(name="a", **fields), scheduler)
        self.ends: list[str] = []

    def profile(self, recorder: Any) -> None:
        raise NotImplementedError

    def ended(self, error: RuntimeError) -> None:
        self.ends.append(f"{threading.current_thread().name}: {error}")


def test_a_loop_that_is_told_to_stop_ends_in_silence() -> None:
    thread = Thread(Loop())
    thread.join(5)  # never started
    thread.start()
    thread.stop()
    thread.join(5)
    assert thread.ends == []


@pytest.mark.parametrize(
    ("scheduler", "reason"),
    [
        (Loop(ends=True), "its loop returned without being told to stop"),
        (Loop(SystemExit(4)), "its loop ended with SystemExit: 4"),
    ],
)
def test_a_loop_that_ends_by_itself_says_why(scheduler: Loop, reason: str) -> None:
    thread = Thread(scheduler)
    thread.start()
    thread.join(5)
    assert thread.ends == [f"scheduler-a: {reason}"]


@pytest.mark.parametrize(("gpu", "chosen"), [(1, [(1, "scheduler-a")]), (None, [])])
def test_it_uses_the_gpu_of_its_stage(gpu: int | None, chosen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []
    cuda = SimpleNamespace(
        is_available=lambda: True, set_device=lambda gpu: used.append((gpu, threading.current_thread().name))
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    thread = Thread(Loop(), gpu=gpu)
    thread.start()
    thread.stop()
    thread.join(5)
    assert used == chosen


def test_the_processor_s_time_of_the_thread_is_counted_while_it_runs() -> None:
    class Busy(Loop):
        def start(self) -> None:
            while time.thread_time() < 0.01:
                pass
            ready.set()
            super().start()

    ready = threading.Event()
    thread = Thread(Busy())
    assert thread.statistics() == {"cpu_seconds": 0.0}
    thread.start()
    assert ready.wait(30)
    assert 0.01 <= thread.statistics()["cpu_seconds"] < 1.0
    thread.stop()
    thread.join(5)
    assert thread.statistics() == {"cpu_seconds": 0.0}


def test_a_loop_that_ends_with_an_error_of_any_class_says_so(hostile: BaseException) -> None:
    thread = Thread(Loop(hostile))
    thread.start()
    thread.join(5)
    [end] = thread.ends
    assert end.startswith("scheduler-a: its loop ended with Hostile: ")
