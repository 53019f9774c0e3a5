"""The fork server that tests share: taken over by the next pipeline where that can make no difference, and never a dead one."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from fault_harness import step
from kept_forks import end_kept, kept_pids
from pipelines import make_pipeline

from omni_core.client import open_async
from omni_core.protocol.messages import OmniRequest


async def server_of_a_pipeline(folder: Path) -> int:
    """Run a pipeline; return the pid of the server that it has left."""
    async with open_async(make_pipeline(folder, step("only", terminal=True))) as client:
        assert (await client.submit(OmniRequest({"n": 1})))["only"]["n"] == 1
    (pid,) = kept_pids()
    return pid


async def test_the_next_pipeline_takes_the_server(folder: Path) -> None:
    assert await server_of_a_pipeline(folder) == await server_of_a_pipeline(folder)


async def test_another_environment_has_a_server_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await server_of_a_pipeline(folder)
    monkeypatch.setenv("OMNI_SOMETHING", "else")
    assert await server_of_a_pipeline(folder) != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


async def test_a_server_that_has_died_is_replaced(folder: Path) -> None:
    first = await server_of_a_pipeline(folder)
    os.kill(first, signal.SIGKILL)
    await asyncio.sleep(0.1)
    assert await server_of_a_pipeline(folder) != first


async def test_nothing_is_left_when_the_run_ends(folder: Path) -> None:
    first = await server_of_a_pipeline(folder)
    end_kept()
    assert not kept_pids()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
