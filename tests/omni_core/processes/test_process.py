"""A process as its parent sees it, without starting one."""

from __future__ import annotations

import signal

import pytest

from omni_core.processes.process import SupervisedProcess
from omni_core.protocol.specs import ProcessSpec


class Process(SupervisedProcess):
    def say_stop(self) -> None: ...

    def kill(self) -> None: ...


def process() -> Process:
    spec = ProcessSpec(name="p", stages=[], endpoint="ipc://e", coordinator_endpoint="ipc://c", stage_endpoints={})
    made = Process(spec)
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
