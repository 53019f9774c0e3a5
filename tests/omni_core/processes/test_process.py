"""A process as its parent sees it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from attrs import evolve

from omni_core.machines import LocalMachine
from omni_core.processes import main
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


async def test_every_signal_can_be_described() -> None:
    killed = process()
    for number in range(1, signal.NSIG):
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

    before = set(psutil.Process().children())
    monkeypatch.setattr(os, "pidfd_open", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        StageProcess(SPEC, lambda process: None)
    assert not set(psutil.Process().children()) - before


def a_child() -> int:
    return subprocess.Popen(["sleep", "60"]).pid


async def test_a_kill_reaches_a_fork_that_is_not_known_yet() -> None:
    forking: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    process = StageProcess(SPEC, lambda process: None, fork=lambda *_: forking)
    forking.set_result(a_child())
    process.kill()
    await process.ended
    assert process.code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("variables", "is_forked"), [({}, True), ({"CUDA_VISIBLE_DEVICES": "1"}, True), ({"X": "1"}, False)]
)
async def test_variables_that_imports_may_have_read_need_a_fresh_interpreter(
    variables: dict[str, str], is_forked: bool
) -> None:
    forking: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    forked: list[ProcessSpec] = []

    def fork(spec: ProcessSpec, descriptors: object) -> asyncio.Future[int]:
        forked.append(spec)
        return forking

    process = StageProcess(evolve(SPEC, own_env=variables), lambda process: None, fork=fork)
    assert bool(forked) == is_forked
    if is_forked:
        forking.set_result(a_child())
    process.kill()
    await process.ended


async def test_a_listener_is_the_process_own(tmp_path: Path) -> None:
    machine = LocalMachine(tmp_path, listen=lambda: socket.create_server(("127.0.0.1", 0)))
    process = machine.start(evolve(SPEC, own_env={"X": "1"}), lambda process: None)
    host, _, port = process.address.removeprefix("tcp://").partition(":")
    socket.create_connection((host, int(port))).close()
    process.kill()
    await process.ended
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    machine.close()


async def test_a_killed_process_is_not_started_in_another_way() -> None:
    forking: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    process = StageProcess(SPEC, lambda process: None, fork=lambda *_: forking)
    forking.set_exception(OSError("no fork server"))
    process.kill()
    await process.ended
    assert (process.pid, process.code) == (0, -signal.SIGKILL)


async def test_the_cause_of_a_failed_start_is_a_line_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **more: object) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    forking: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    told: list[str] = []
    process = StageProcess(SPEC, lambda process: None, on_line=told.append, fork=lambda *_: forking)
    monkeypatch.setattr(subprocess, "Popen", full)
    forking.set_exception(OSError("no fork server"))
    await process.ended
    assert len(told) == 1
    assert "it could not be started" in told[0]


@pytest.mark.parametrize("call", ["pipe", "memfd_create", "write"])
async def test_a_start_that_fails_early_leaves_no_descriptor(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, calls, real = os.listdir("/proc/self/fd"), list[object](), getattr(os, call)

    def full(*arguments: object) -> object:
        calls.append(arguments)
        if call == "pipe" and len(calls) == 1:
            return real(*arguments)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="Too many open files"):
        StageProcess(SPEC, lambda process: None)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(("given", "threads"), [("4,2", 4), ("3", 3), ("", 1), ("many", 1), ("0", 1)])
def test_torch_has_the_threads_of_the_first_level(given: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(set_num_threads=found.append))
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    main.limit_torch_threads()
    assert found == [threads]
