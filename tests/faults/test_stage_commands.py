"""``omni stage`` against a running pipeline, and its signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from live_harness import ask, held, two, until

from omni_cli.status_client import running
from omni_core.client import AsyncPipe, open_async

pytest.importorskip("omni_cli.live")


async def begin(pipe: AsyncPipe, folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    """Start ``omni stage`` on the pipeline of a folder."""
    (run,) = running(folder)
    command = [sys.executable, "-m", "omni_core.cli", "stage", *arguments, str(run)]
    return await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, "COLUMNS": "200"}
    )


async def result(command: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    output, errors = await asyncio.wait_for(command.communicate(), 60)
    return command.returncode, output.decode(), errors.decode()


async def omni_stage(pipe: AsyncPipe, folder: Path, *arguments: str) -> tuple[int | None, str, str]:
    return await result(await begin(pipe, folder, *arguments))


async def line_of(command: asyncio.subprocess.Process, part: str) -> None:
    assert command.stdout is not None
    async with asyncio.timeout(60):
        while part not in (line := (await command.stdout.readline()).decode()):
            assert line, f"the command has ended without the line {part!r}"


async def test_commands_replace_and_scale(folder: Path) -> None:
    async with open_async(two(folder)) as pipe:
        code, output, _ = await omni_stage(
            pipe, folder, "replace", "work", "--set", "factory_args.mark=new", "--set", "env.A=1"
        )
        lines = ["work.1: starting", "work.1: ready", "work: drains 0 requests", "work: ended"]
        assert (code, output.splitlines()) == (0, [*lines, "work: started work.1, ended work"])
        assert (await ask(pipe))["mark"] == "new"
        assert pipe.config.stage("work").env == {"A": "1"}
        code, output, _ = await omni_stage(pipe, folder, "scale", "begin", "2", "--json")
        assert (code, json.loads(output)) == (0, {"group": "begin", "started": ["begin.1"], "ended": []})
        code, output, _ = await omni_stage(pipe, folder, "scale", "begin", "2")
        assert (code, output) == (0, "begin: nothing to do\n")
        code, output, _ = await omni_stage(pipe, folder, "scale", "work", "0", "--json")
        assert code == 1
        assert "at least one replica, not 0" in json.loads(output)["error"]["message"]
        code, _, errors = await omni_stage(pipe, folder, "replace", "work", "--set", "env.A=1", "--set", "env.A=2")
        assert (code, errors) == (1, "Error: --set env.A: given twice\n")


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_before_the_new_unit_serves_leaves_the_old_one(
    folder: Path, number: signal.Signals, code: int
) -> None:
    async with open_async(two(folder)) as pipe:
        building, pids = folder / "building", pipe.process_ids
        command = await begin(pipe, folder, "replace", "work", "--set", f"factory_args.building={building}")
        await until(building.exists)
        command.send_signal(number)
        ended, _, errors = await result(command)
        assert ended == code
        assert errors.startswith("cancelled: every unit that serves goes on")
        assert pipe.process_ids == pids, "the command has to wait until the new unit is gone"
        building.unlink()


@pytest.mark.full
async def test_a_signal_later_lets_the_old_unit_drain(folder: Path) -> None:
    async with open_async(two(folder)) as pipe:
        (task,) = await held(pipe, 1, folder / "go")
        command = await begin(pipe, folder, "replace", "work", "--set", "factory_args.mark=new")
        await line_of(command, "drains 1 request")
        command.send_signal(signal.SIGINT)
        assert (await result(command))[0] == 130
        assert pipe.health()["work"]["state"] == "draining"
        assert (await ask(pipe))["mark"] == "new"
        (folder / "go").touch()
        assert (await task)["mark"] == "old"
        await until(lambda: set(pipe.health()) == {"begin", "work.1"})


@pytest.mark.full
async def test_an_operation_goes_on_when_its_command_is_killed(folder: Path) -> None:
    async with open_async(two(folder)) as pipe:
        (task,) = await held(pipe, 1, folder / "go")
        command = await begin(pipe, folder, "replace", "work")
        await line_of(command, "drains 1 request")
        command.kill()
        await command.wait()
        (folder / "go").touch()
        await task
        await until(lambda: set(pipe.health()) == {"begin", "work.1"})
        assert (await omni_stage(pipe, folder, "replace", "work"))[0] == 0
