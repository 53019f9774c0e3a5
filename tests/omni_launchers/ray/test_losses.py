"""Processes, agents and nodes of a cluster that are lost while requests run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from over_nodes import agent_of, ask, gone, pipeline, raylet_of, serves_again

from omni_core.client import AsyncPipe, open_async
from omni_core.errors import RequestFailedError
from omni_testing.ours.ray import LocalCluster

LOSS_SECONDS = 60.0
"""Only a failure waits that long; what a lost node held would compute for minutes."""


async def held(pipe: AsyncPipe, count: int, to: str) -> list[asyncio.Task[Any]]:
    """Return requests that a stage holds."""
    tasks = [asyncio.ensure_future(ask(pipe, to, seconds=600.0)) for _ in range(count)]
    async with asyncio.timeout(LOSS_SECONDS):
        while (await pipe.statistics())[to].get(to, {}).get("in_flight", 0) < count:
            await asyncio.sleep(0.02)
    return tasks


async def until_gone(pids: list[int]) -> None:
    """Wait until processes have ended."""
    async with asyncio.timeout(LOSS_SECONDS):
        while not gone(pids):
            await asyncio.sleep(0.02)


async def failed(tasks: list[asyncio.Task[Any]], match: str) -> None:
    """Check that requests fail in time, and say why."""
    done, late = await asyncio.wait(tasks, timeout=LOSS_SECONDS)
    assert not late, f"{len(late)} requests wait for ever"
    for each in done:
        with pytest.raises(RequestFailedError, match=match):
            each.result()


async def test_a_process_that_is_killed_is_restarted_in_place(cluster: LocalCluster, folder: Path) -> None:
    async with open_async(pipeline(cluster, folder)) as pipe:
        one, two = (await ask(pipe, "one"))["pids"], (await ask(pipe, "two"))["pids"]
        agent, lost = agent_of(two[1]), await held(pipe, 1, "two")
        os.kill(two[1], signal.SIGKILL)
        await failed(lost, "SIGKILL")
        again = (await serves_again(pipe, "two", two[1]))["pids"]
        assert agent_of(again[1]) == agent
        assert (await ask(pipe, "one"))["pids"] == one


async def test_an_agent_that_is_killed_takes_its_processes_along_and_is_replaced_on_its_node(
    cluster: LocalCluster, folder: Path
) -> None:
    async with open_async(pipeline(cluster, folder)) as pipe:
        one, two = (await ask(pipe, "one"))["pids"], (await ask(pipe, "two"))["pids"]
        raylet, agent = raylet_of(two[1]), agent_of(two[1])
        lost = await held(pipe, 1, "two")
        os.kill(agent, signal.SIGKILL)
        await failed(lost, r"its host '.*/[0-9a-f]{12}' is gone")
        again = (await serves_again(pipe, "two", two[1]))["pids"]
        assert raylet_of(again[1]) == raylet
        assert agent_of(again[1]) != agent
        await until_gone([two[1]])
        assert (await ask(pipe, "one"))["pids"] == one


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_node_is_removed_under_sixteen_requests(cluster: LocalCluster, folder: Path, retries: int) -> None:
    rack = f"d{retries}"
    node = cluster.add(rack)
    async with open_async(pipeline(cluster, folder, two=rack, retries=retries)) as pipe:
        one, two = (await ask(pipe, "one"))["pids"], (await ask(pipe, "two"))["pids"]
        tasks = [asyncio.ensure_future(ask(pipe, "two", seconds=0.3)) for _ in range(8)]
        others = [asyncio.ensure_future(ask(pipe, "one", seconds=0.3)) for _ in range(8)]
        await asyncio.sleep(0.2)
        await asyncio.to_thread(cluster.remove, node)
        if not retries:
            done, late = await asyncio.wait(tasks, timeout=LOSS_SECONDS)
            assert not late, "requests that the node held are not over"
            errors = [str(error) for each in done if (error := each.exception())]
            assert errors
            assert all("is gone" in each for each in errors), errors
        successor = cluster.add(rack)  # Ray makes nodes in the main thread only
        answers = await asyncio.gather(*others)
        assert {answer["pids"][1] for answer in answers} == {one[1]}
        again = (await serves_again(pipe, "two", two[1]))["pids"]
        assert raylet_of(again[1]) not in (0, raylet_of(one[1]))
        for each in tasks:
            if retries:
                assert (await each)["pids"][1] in (two[1], again[1])
        assert (await ask(pipe, "one"))["pids"] == one
        await until_gone([two[1]])
    cluster.remove(successor)


async def test_nothing_is_left_of_a_driver_that_is_killed(cluster: LocalCluster, temporary: Path, folder: Path) -> None:
    code = (
        "import asyncio, json\n"
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "from over_nodes import ask, pipeline\n"
        "from omni_core.client import open_async\n"
        "async def main():\n"
        f"    config = pipeline(SimpleNamespace(address={cluster.address!r}), Path({str(folder)!r}))\n"
        "    async with open_async(config) as pipe:\n"
        "        pids = [(await ask(pipe, to))['pids'] for to in ('one', 'two')]\n"
        "        print(json.dumps(pids), flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    driver = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    try:
        assert driver.stdout is not None
        one, two = json.loads(await asyncio.wait_for(driver.stdout.readline(), 120))
        pids = sorted({*one, *two})
        chain = [parent.pid for pid in (one[1], two[1]) for parent in psutil.Process(pid).parents()[:2]]
        assert not gone(pids)
        assert list(temporary.glob("omni-*"))
        assert list(folder.glob("omni-*"))
    finally:
        driver.kill()
        await driver.wait()
    begin, left = time.monotonic(), list[Path]()
    while not gone([*pids, *chain]) or (left := [*temporary.glob("omni-*"), *folder.glob("omni-*")]):
        assert time.monotonic() - begin < LOSS_SECONDS, f"left: {pids} {chain} {left}"
        await asyncio.sleep(0.05)
