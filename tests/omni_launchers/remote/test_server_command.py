"""The command of a host's server: what it reads, how it ends, and what is told of it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from omni_core.errors import StartupError
from omni_launchers.remote import server_command
from omni_launchers.remote.server_command import ServerCommand


def command(script: str) -> ServerCommand:
    return ServerCommand("b", [sys.executable, "-c", script], "public\nsecret\n")


async def test_it_gets_the_keys_and_ends_with_its_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "told"
    running = command(f"import sys; open({str(file)!r}, 'w').write(sys.stdin.read())")
    await running.start()
    async with asyncio.timeout(60):
        while not file.exists():  # it reads until its standard input ends
            await asyncio.sleep(0.01)
    assert file.read_text() == ""
    await running.stop()
    assert file.read_text() == "public\nsecret\n"


async def test_its_end_is_told_with_its_last_lines() -> None:
    running = command("import sys; [print(number, 'x' * 600, file=sys.stderr) for number in range(30)]; sys.exit(3)")
    await running.start()
    told = str(await asyncio.wait_for(running.ended(), 60))
    assert "host 'b': its server has ended (exit code 3)" in told
    assert [line.split()[0] for line in told.splitlines()[1:]] == [str(number) for number in range(10, 30)]
    assert max(map(len, told.splitlines()[1:])) < 510
    await running.stop()


async def test_one_that_wrote_nothing_is_told_so() -> None:
    running = command("import os; os.kill(os.getpid(), 9)")
    await running.start()
    told = str(await asyncio.wait_for(running.ended(), 60))
    assert "(signal 9)" in told
    assert told.endswith("it wrote nothing")
    await running.stop()


async def test_one_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    running = command(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    )
    await running.start()
    process = running._process
    assert process is not None
    monkeypatch.setattr(server_command, "STOP_SECONDS", 0.3)
    monkeypatch.setattr(server_command, "KILL_SECONDS", 0.3)
    await asyncio.wait_for(running.stop(), 60)
    assert process.returncode in (-9, -15)  # -15: it was told before it ignored that


async def test_an_abandoned_one_has_ended_before_the_next_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_command, "STOP_SECONDS", 0.1)
    running = command("import time; time.sleep(60)")
    await running.start()
    first = running._process
    assert first is not None
    running.abandon()
    await asyncio.sleep(0)
    await running.start()
    assert first.returncode is not None
    await running.stop()


async def test_a_program_that_is_missing_is_an_error() -> None:
    with pytest.raises(StartupError, match="host 'b': /nowhere/ssh cannot be started"):
        await ServerCommand("b", ["/nowhere/ssh"], "").start()
