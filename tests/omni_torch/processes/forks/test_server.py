"""Processes that are forks of a server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from attrs import evolve

from omni_core.processes.process import StageProcess, SupervisedProcess
from omni_core.protocol.specs import ProcessSpec
from omni_torch.processes.forks import main as fork_main
from omni_torch.processes.forks.server import ForkServer


@pytest.fixture
async def server() -> AsyncIterator[ForkServer]:
    before = set(psutil.Process().children())
    made = ForkServer()
    yield made
    made.close()
    assert not set(psutil.Process().children()) - before


@pytest.fixture
def spec(tmp_path: Path) -> ProcessSpec:
    sockets = {name: f"ipc://{tmp_path}/{name}" for name in ("p", "coordinator")}
    return ProcessSpec(
        name="p", stages=[], endpoint=sockets["p"], coordinator_endpoint=sockets["coordinator"], stage_endpoints={}
    )


def start(spec: ProcessSpec, server: ForkServer) -> StageProcess:
    return StageProcess(spec, lambda process: None, fork=server.fork)


async def is_a_fork(pid: int) -> bool:
    """Return whether a process becomes a fork: it takes its name a moment after it has begun."""
    for _ in range(500):
        if psutil.Process(pid).name() == "omni:p":
            return True
        await asyncio.sleep(0.01)
    return False


def pid_of(server: ForkServer) -> int:
    assert server._process is not None
    return server._process.pid


async def stop(*processes: SupervisedProcess) -> None:
    for process in processes:
        process.say_stop()
        await process.ended


async def test_a_fork_is_a_child_of_this_process_with_a_group_and_a_name_of_its_own(
    server: ForkServer, spec: ProcessSpec
) -> None:
    process = start(spec, server)
    await process.launched
    assert await is_a_fork(process.pid)
    assert psutil.Process(process.pid).ppid() == os.getpid()
    assert os.getpgid(process.pid) == process.pid
    await stop(process)
    assert process.code in (0, 1)  # 1: it was told before it had begun


async def test_the_signal_that_kills_a_fork_is_known(server: ForkServer, spec: ProcessSpec) -> None:
    process = start(spec, server)
    await process.launched
    os.kill(process.pid, signal.SIGTERM)  # it may not handle it yet, or end in order
    await process.ended
    assert process.code in (0, -signal.SIGTERM)
    process = start(spec, server)
    await process.launched
    process.kill()
    await process.ended
    assert process.reason.endswith("was killed by signal 9 (SIGKILL)")


async def test_the_last_words_of_a_fork_are_kept(server: ForkServer, spec: ProcessSpec) -> None:
    process = start(evolve(spec, endpoint="ipc:///does/not/exist"), server)
    await process.ended
    assert process.code == 1
    assert "Error" in process.last_lines


async def test_forks_outlive_their_server_and_the_next_one_gets_a_new_one(
    server: ForkServer, spec: ProcessSpec, tmp_path: Path
) -> None:
    first = start(spec, server)
    await first.launched
    psutil.Process(pid_of(server)).kill()
    second = start(evolve(spec, endpoint=f"ipc://{tmp_path}/second"), server)
    await second.launched
    assert first.running
    assert second.running
    third = start(evolve(spec, endpoint=f"ipc://{tmp_path}/third"), server)
    await third.launched
    assert await is_a_fork(third.pid)
    await stop(first, second, third)


async def test_a_fork_that_is_not_wanted_any_more_is_ended(server: ForkServer, spec: ProcessSpec) -> None:
    before = set(psutil.Process().children())
    process = start(spec, server)
    process.kill()
    await process.ended
    assert process.code == -signal.SIGKILL
    other = start(spec, server)
    await other.launched
    assert {each.pid for each in set(psutil.Process().children()) - before} == {other.pid, pid_of(server)}
    await stop(other)


async def test_another_environment_gets_another_server(
    server: ForkServer, spec: ProcessSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start({})
    first = pid_of(server)
    server.start({})
    assert pid_of(server) == first
    monkeypatch.setenv("OMNI_TEST_PLACE", "elsewhere")
    server.start({})
    assert pid_of(server) != first


async def test_a_module_that_starts_a_thread_is_not_shared(
    server: ForkServer,
    spec: ProcessSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "busy_module.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        process = start(evolve(spec, preload=["busy_module"]), server)
        await process.launched
    assert "1 threads were started by an import of busy_module" in caplog.text
    while not (command := psutil.Process(process.pid).cmdline()):  # it is empty until the program is read
        await asyncio.sleep(0.01)
    assert "omni_core.processes.main" in command
    await stop(process)


async def test_a_module_that_cannot_be_shared_is_named(
    server: ForkServer, spec: ProcessSpec, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        process = start(evolve(spec, preload=["no_such_module"]), server)
        await process.launched
    assert "preload: no_such_module cannot be imported: ModuleNotFoundError" in caplog.text
    assert await is_a_fork(process.pid)
    await stop(process)


async def test_a_process_that_needs_no_import_does_not_wait_for_one(
    server: ForkServer, spec: ProcessSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(1.0)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    slow = start(evolve(spec, endpoint=f"ipc://{tmp_path}/slow", preload=["slow_module"]), server)
    quick = start(spec, server)
    await asyncio.wait([slow.launched, quick.launched], return_when=asyncio.FIRST_COMPLETED)
    assert quick.launched.done()
    assert not slow.launched.done()
    await slow.launched
    await stop(slow, quick)


def test_a_process_with_threads_is_not_forked() -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    try:
        assert "threads were started" in fork_main.obstacle()
    finally:
        go_on.set()
        thread.join()


async def test_a_long_error_of_an_import_is_told_in_part(
    server: ForkServer,
    spec: ProcessSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "wordy_module.py").write_text("raise RuntimeError('\\N{SNAKE}' * 20_000)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        process = start(evolve(spec, preload=["wordy_module"]), server)
        await process.launched
    assert "preload: wordy_module cannot be imported: RuntimeError: \N{SNAKE}" in caplog.text
    await stop(process)


class Connected:
    """A fork server whose other end is here: what was asked for, and a future for it."""

    def __init__(self) -> None:
        self.server = ForkServer()
        self.server._connection, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server._connection.setblocking(False)
        self.server._process = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.exit(3)"])
        self.server._process.wait()
        self.asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.server._waiting[0] = self.asked


async def test_a_reply_that_cannot_be_read_fails_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    made = Connected()
    made.theirs.send(b'[0, 1, "cut in the mid')
    made.server._read()
    assert "cannot be read" in caplog.text
    assert isinstance(made.asked.exception(), OSError)
    made.theirs.close()


async def test_a_server_that_ends_by_itself_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    made = Connected()
    made.theirs.close()
    made.server._read()
    assert "the fork server has ended (code 3)" in caplog.text
    assert isinstance(made.asked.exception(), OSError)


def test_descriptors_that_were_lost_are_a_reply() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(ours, [b'[7, "p", []]'], [0, 1, 2, 0, 1, 2])  # more than there is room for
        ours.shutdown(socket.SHUT_WR)
        assert not fork_main._ForkServer(theirs)._receive()
        assert json.loads(ours.recv(1000)) == [7, 0, "the limit of open files is reached (ulimit -n)"]


async def test_a_server_that_stands_still_is_replaced(
    server: ForkServer,
    spec: ProcessSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("omni_torch.processes.forks.server.FORK_SECONDS", 0.2)
    first = start(spec, server)
    await first.launched
    stopped = pid_of(server)
    os.kill(stopped, signal.SIGSTOP)
    others = [start(evolve(spec, endpoint=f"ipc://{tmp_path}/{n}"), server) for n in range(2)]
    async with asyncio.timeout(30):
        await asyncio.gather(*(each.launched for each in others))
    assert not psutil.pid_exists(stopped)
    assert "the fork server has not answered for 0.2 s" in caplog.text
    assert first.running
    last = start(evolve(spec, endpoint=f"ipc://{tmp_path}/last"), server)
    await last.launched
    assert await is_a_fork(last.pid)
    await stop(first, *others, last)


async def test_an_import_has_more_time_than_a_fork(
    server: ForkServer, spec: ProcessSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_torch.processes.forks.server.FORK_SECONDS", 0.1)
    (tmp_path / "late_module.py").write_text("import time\ntime.sleep(0.5)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    first = start(spec, server)
    await first.launched
    before = pid_of(server)
    slow = start(evolve(spec, endpoint=f"ipc://{tmp_path}/slow", preload=["late_module"]), server)
    await slow.launched
    assert pid_of(server) == before
    assert await is_a_fork(slow.pid)
    await stop(first, slow)
