"""Processes that stages start: they do no harm to the stage, and end with it, or with the program that holds the pipeline."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from family_stages import STARTS, pipeline
from fault_harness import SOON
from pipelines import make_pipeline

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import StageConfig
from omni_core.errors import RequestFailedError
from omni_core.protocol.messages import OmniRequest

WAYS = list(STARTS)
MARKED = [way for way in WAYS if way != "program without environment"]


async def started(pipe: AsyncPipe, ways: list[str]) -> list[psutil.Process]:
    pids = (await pipe.submit(OmniRequest({"ways": ways})))["parent"]
    assert len(pids) >= len(ways)
    return [psutil.Process(pid) for pid in pids]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that have not ended; the first process of a container may not wait for them."""
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


async def ended(processes: list[psutil.Process]) -> None:
    async with asyncio.timeout(SOON):
        while alive(processes):
            await asyncio.sleep(0.01)


async def test_they_end_when_the_pipeline_is_closed(folder: Path) -> None:
    async with open_async(pipeline(folder, "start")) as pipe:
        processes = await started(pipe, WAYS)
        assert alive(processes) == processes
    await ended(
        processes
    )  # the sweep finds a process by its memory, which a killed one gives up a moment before its end


@pytest.mark.parametrize("env", [{}, {"X": "1"}], ids=["fork", "fresh interpreter"])
async def test_they_end_when_their_stage_is_killed(folder: Path, env: dict[str, str]) -> None:
    async with open_async(pipeline(folder, "start", env=env)) as pipe:
        processes = await started(pipe, WAYS)
        bystander = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        os.kill(next(iter(pipe.process_ids.values())), signal.SIGKILL)
        await ended(processes)
        again = await started(pipe, WAYS)
        assert alive(again) == again
        assert bystander.poll() is None
        bystander.kill()
        bystander.wait()
    await ended(again)


PARENT = """
import asyncio, json, sys
from pathlib import Path
from family_stages import pipeline
from omni_core.client import open_async
from omni_core.errors import RequestFailedError
from omni_core.protocol.messages import OmniRequest

async def main():
    async with open_async(pipeline(Path(sys.argv[1]), "start")) as pipe:
        answer = await pipe.submit(OmniRequest({"ways": json.loads(sys.argv[2])}))
        print(json.dumps(answer["parent"]), flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


async def test_they_end_when_the_program_is_killed(folder: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(folder), json.dumps(MARKED)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    line = await asyncio.to_thread(parent.stdout.readline)
    processes = [psutil.Process(pid) for pid in json.loads(line)]
    assert alive(processes) == processes
    parent.kill()
    parent.wait()
    await ended(processes)
    while list(folder.iterdir()):
        await asyncio.sleep(0.01)


async def test_a_stage_may_use_multiprocessing(folder: Path) -> None:
    async with open_async(pipeline(folder, "use")) as pipe:
        for _ in range(4):
            answer = await pipe.submit(OmniRequest({}))
            assert answer["parent"] == ["HELLO", "WORLD", -signal.SIGTERM, -signal.SIGINT]
        assert pipe.health()["parent"]["restarts"] == 0


@pytest.mark.parametrize("env", [{}, {"X": "1"}], ids=["fork", "fresh interpreter"])
async def test_the_standard_input_of_a_stage_is_empty(folder: Path, env: dict[str, str]) -> None:
    async with open_async(pipeline(folder, "read_input", env=env)) as pipe:
        assert await pipe.submit(OmniRequest({})) == {"parent": ""}


@pytest.mark.parametrize("reader", ["runner", "stage"])
async def test_a_process_that_writes_to_foreign_sockets_is_replaced_and_named(folder: Path, reader: str) -> None:
    stages = [
        StageConfig(name="bad", process="bad", factory="family_stages:stray", next="good"),
        StageConfig(name="good", process="good", factory="family_stages:echo", terminal=True),
    ]
    async with open_async(make_pipeline(folder, *stages)) as pipe:
        assert await pipe.submit(OmniRequest({"n": 1})) == {"good": 1}
        socket = "coordinator.sock" if reader == "runner" else "1.sock"
        with pytest.raises(RequestFailedError, match="bytes that are no frame") as caught:
            async with asyncio.timeout(SOON):
                await pipe.submit(OmniRequest({"n": 2, "stray": socket}))
        assert (caught.value.stage, caught.value.error_type) == ("bad", "ProcessDied")
        assert await pipe.submit(OmniRequest({"n": 3})) == {"good": 3}
        assert [pipe.health()[name]["restarts"] for name in ("bad", "good")] == [1, 0]
