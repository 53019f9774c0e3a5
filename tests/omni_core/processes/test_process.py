"""A process as its parent sees it."""

from __future__ import annotations

import errno
import os
import signal

import psutil
import pytest

from omni_core.processes.process import StageProcess, SupervisedProcess
from omni_core.protocol.specs import ProcessSpec


class Process(SupervisedProcess):
    def say_stop(self) -> None: ...

    def kill(self) -> None: ...


SPEC = ProcessSpec(name="p", stages=[], endpoint="ipc://e", coordinator_endpoint="ipc://c", stage_endpoints={})


def process() -> Process:
    made = Process(SPEC)
    made.pid = 7
    return made


@pytest.mark.parametrize("number", range(1, signal.NSIG))
async def test_every_signal_can_be_described(number: int) -> None:
    killed = process()
    killed.code = -number
    assert killed.reason.startswith(f"its process (pid 7) was killed by signal {number}")


async def test_a_signal_is_described_by_its_name_if_it_has_one() -> None:
    killed = process()
    killed.code = -9
    assert killed.reason.endswith("by signal 9 (SIGKILL)")
    killed.code = -40
    assert killed.reason.endswith("by signal 40")


async def test_the_last_lines_of_the_log_are_shown() -> None:
    talkative = process()
    assert talkative.last_lines == ""
    for n in range(1000):
        talkative.keep(f"line {n}")
    assert talkative.last_lines.startswith("\n  line 992\n")
    assert talkative.last_lines.endswith("\n  line 999")


async def test_a_process_that_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        StageProcess(SPEC, lambda process: None)
    assert not psutil.Process().children()
