"""Deaths at critical moments: during a restart, with shared memory in use, and of a scheduler's own loop."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from death_harness import blamed, kill, serving
from fault_harness import IN_FLIGHT, SOON, Watched, branching, right_branching, step, watched
from pipelines import make_pipeline

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import PipelineConfig, RestartConfig, StageConfig
from omni_core.errors import RequestFailedError
from omni_core.protocol.codec import encode
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.specs import ProcessSpec, StageSpec

MIB = 2**20


def relayed(folder: Path, check: str = "check_vector", **fields: Any) -> PipelineConfig:
    """A tensor in shared memory, made in one process and checked in another."""
    return make_pipeline(
        folder,
        StageConfig(name="make", factory="fault_stages:vector", process="make", next="check", preload=["torch"]),
        StageConfig(name="check", factory=f"fault_stages:{check}", process="check", terminal=True, preload=["torch"]),
        **fields,
    )


def right_relayed(n: int, answer: dict[str, Any]) -> bool:
    return bool(answer["check"]["n"] == n)


@pytest.mark.parametrize(
    ("kind", "message"), [("raise", "LookupError: the loop is broken"), ("return", "without being told to stop")]
)
async def test_a_scheduler_whose_loop_ends_is_restarted(folder: Path, kind: str, message: str) -> None:
    config = make_pipeline(
        folder,
        step("start", next="mortal"),
        StageConfig(name="mortal", factory="fault_stages:Mortal", process="mortal", terminal=True),
    )
    async with open_async(config) as client:
        for deaths in (1, 2):
            request = OmniRequest({"n": 1, "poison": {"at": "mortal", "kind": kind}})
            with pytest.raises(RequestFailedError, match=message) as caught:
                await asyncio.wait_for(client.submit(request), SOON)
            assert caught.value.stage == "mortal"
            while client.health()["mortal"]["restarts"] < deaths:
                await asyncio.sleep(0.01)
            answer = await asyncio.wait_for(client.submit(OmniRequest({"n": 2})), SOON)
            assert answer["mortal"]["n"] == 2
        assert client.health()["mortal"]["restarts"] == 2
        assert client.health()["start"]["restarts"] == 0


async def test_retries_hide_the_death_of_the_sender_of_a_relay(folder: Path) -> None:
    """Includes the case that a message of the dead sender has arrived whose shared memory is gone."""
    config = relayed(folder, retries=10, restart=RestartConfig(limit=100, backoff=0.05))
    async with watched(config, right_relayed, {"nbytes": 400_000}) as (pipeline, load):
        async with load.running():
            for _ in range(5):
                await kill(pipeline.client, "make")
                await serving(pipeline.client, "make")
        assert not load.failed
        await pipeline.rest()


async def test_without_retries_the_death_of_a_sender_is_reported_as_one(folder: Path) -> None:
    config = relayed(folder, restart=RestartConfig(limit=100, backoff=0.05))
    async with watched(config, right_relayed, {"nbytes": 400_000}) as (pipeline, load):
        async with load.running():
            for _ in range(5):
                await kill(pipeline.client, "make")
                await serving(pipeline.client, "make")
        blamed(load.failed, "make", "check")


async def test_a_sender_that_is_dead_when_its_message_is_read(folder: Path) -> None:
    """The message is in the reader's socket; the bytes were in the memory of a process that the reader never connected
    to.
    """
    async with open_async(relayed(folder)) as client:
        await client.submit(OmniRequest({"n": 1, "nbytes": MIB}))
        await kill(client, "make")
        await serving(client, "make")
        await client.submit(OmniRequest({"n": 2, "nbytes": 1000}))  # imports torch there
        reader = client.process_ids["check"]
        os.kill(reader, signal.SIGSTOP)
        try:
            unread = asyncio.create_task(client.submit(OmniRequest({"n": 4, "nbytes": MIB})))
            await asyncio.sleep(0.5)
            await kill(client, "make")
        finally:
            os.kill(reader, signal.SIGCONT)
        with pytest.raises(RequestFailedError, match="SIGKILL") as caught:
            await asyncio.wait_for(unread, SOON)
        assert (caught.value.stage, caught.value.error_type) == ("make", "ProcessDied")


async def test_a_child_whose_parent_died_first_builds_nothing(folder: Path) -> None:
    """The parent is killed between the fork of a child and its request to be notified, so the child has to check."""
    spec = ProcessSpec(
        name="orphan",
        stages=[StageSpec(name="bad", factory="fault_stages:never_ready", terminal=True)],
        endpoint=f"ipc://{folder}/0.sock",
        coordinator_endpoint=f"ipc://{folder}/c.sock",
        stage_endpoints={},
    )
    document = os.memfd_create("spec", 0)
    os.write(document, encode(spec))
    os.lseek(document, 0, os.SEEK_SET)
    lifeline, end = os.pipe()
    os.close(end)
    command = [sys.executable, "-m", "omni_core.processes.main", str(document), str(lifeline)]
    child = subprocess.Popen(command, pass_fds=[document, lifeline], stderr=subprocess.DEVNULL)
    os.close(document)
    os.close(lifeline)
    try:
        assert await asyncio.to_thread(child.wait, SOON) == 1
    finally:
        child.kill()
        child.wait()


async def test_slots_of_a_dead_reader_are_freed(folder: Path) -> None:
    async with open_async(relayed(folder, "slow_check_vector")) as client:
        asked = [asyncio.create_task(client.submit(OmniRequest({"n": n, "nbytes": MIB}))) for n in range(20)]
        await asked[0]
        await kill(client, "check")
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert any(isinstance(each, RequestFailedError) for each in outcomes)
        await serving(client, "check")
        await Watched(client).rest()


@pytest.mark.full
async def test_a_clients_id_is_never_taken_for_a_retry(folder: Path) -> None:
    """Clients may choose any ids, because a second attempt has another name inside the pipeline."""
    config = make_pipeline(folder, step("start", next="work"), step("work", terminal=True), retries=1)

    async def ask(client: AsyncPipe, n: int, name: str) -> int:
        answer = await client.submit(OmniRequest({"n": n, "held": {"work": str(folder / "go")}}), name)
        return int(answer["work"]["n"])

    async with open_async(config) as client:
        first = asyncio.create_task(ask(client, 1, "mine"))
        while not (await client.statistics())["work"].get("work", {}).get("in_flight"):
            await asyncio.sleep(0.01)
        await kill(client, "work")
        while not (await client.statistics())["coordinator"]["requests"]["retried"]:
            await asyncio.sleep(0.01)
        others = [asyncio.create_task(ask(client, n, f"mine{mark}2")) for n, mark in enumerate("~#/:.-_@", 2)]
        await asyncio.sleep(0.1)
        assert not first.done()
        (folder / "go").touch()
        assert await asyncio.wait_for(asyncio.gather(first, *others), 2 * SOON) == list(range(1, len(others) + 2))


async def test_a_failed_stage_is_reported(folder: Path) -> None:
    config = make_pipeline(
        folder, step("start", next="work"), step("work", terminal=True), restart=RestartConfig(limit=0)
    )
    async with open_async(config) as client:
        await client.submit(OmniRequest({"n": 1}))
        await kill(client, "work")
        while client.health()["work"]["state"] != "failed":
            await asyncio.sleep(0.01)
        for _ in range(3):
            with pytest.raises(RequestFailedError, match="SIGKILL") as caught:
                await asyncio.wait_for(client.submit(OmniRequest({"n": 2})), SOON)
            assert (caught.value.stage, caught.value.error_type) == ("work", "StageFailedError")
        assert (await client.statistics())["coordinator"]["requests"]["running"] == 0


async def test_processes_restart_when_the_run_folder_was_removed(folder: Path) -> None:
    async with watched(branching(folder), right_branching) as (pipeline, load):
        client = pipeline.client
        async with load.running():
            for name in ("work", "start", "join"):
                shutil.rmtree(client._runner._directory)  # type: ignore[arg-type]
                await kill(client, name)
                await serving(client, name)
                await load.more(2 * IN_FLIGHT)
        shutil.rmtree(client._runner._directory)  # type: ignore[arg-type]
        await kill(client, "left")
        await serving(client, "left")
        assert sorted(os.listdir(client._runner._directory)) == [
            "0.sock",
            "1.sock",
            "2.sock",
            "3.sock",
            "4.sock",
            "coordinator.sock",
        ]
    assert not list(folder.iterdir())


async def test_a_run_folder_that_cannot_be_made_again_is_named(folder: Path) -> None:
    config = make_pipeline(folder / "base", step("work", terminal=True), restart=RestartConfig(limit=1))
    (folder / "base").mkdir()
    async with open_async(config) as client:
        directory = client._runner._directory
        shutil.rmtree(folder / "base")
        (folder / "base").touch()
        os.kill(client.process_ids["work"], signal.SIGKILL)
        async with asyncio.timeout(SOON):
            while client.health()["work"]["state"] != "failed":
                await asyncio.sleep(0.01)
        assert client.health()["work"]["reason"] == (
            f"its process could not be started: the run's folder {directory} was removed and cannot be made again: Not a directory"
        )
    (folder / "base").unlink()
