"""Processes that die, are suspended, or never come up: their requests fail or run again, and no other request is
affected.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from death_harness import blamed, kill, lives, serving
from fault_harness import (
    IN_FLIGHT,
    SOON,
    branching,
    right_branching,
    right_streaming,
    standstills,
    step,
    streaming,
    watched,
)
from leftovers import shared_memory
from pipelines import make_pipeline

from omni_core.client import open_async
from omni_core.config.schema import RestartConfig, StageConfig
from omni_core.errors import RequestFailedError, StageFailedError, StartupError
from omni_core.processes import deaths
from omni_core.protocol.messages import OmniRequest


@pytest.mark.parametrize(("make", "right"), [(branching, right_branching), (streaming, right_streaming)])
async def test_each_process_recovers_when_killed_under_load(folder: Path, make: Any, right: Any) -> None:
    config = make(folder)
    async with watched(config, right) as (pipeline, load):
        client = pipeline.client
        pids = client.process_ids
        async with load.running():
            for name in pids:
                load.failed.clear()
                await kill(client, name)
                await serving(client, name)
                await load.more(2 * IN_FLIGHT)
                blamed(load.failed, name)
                assert len(load.failed) <= IN_FLIGHT
        assert all(client.process_ids[name] != pid for name, pid in pids.items())
        assert {name: unit["restarts"] for name, unit in client.health().items()} == dict.fromkeys(pids, 1)
        await pipeline.as_before()


async def test_only_requests_of_the_dead_process_fail_and_soon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths, "REPORT_SECONDS", SOON)  # on a busy machine, the survivors' reports take their time
    async with watched(branching(folder), right_branching) as (pipeline, _):
        client = pipeline.client

        def ask(n: int, **inputs: Any) -> asyncio.Task[Any]:
            return asyncio.create_task(client.submit(OmniRequest({"n": n, **inputs})))

        async def in_left(count: int) -> None:
            async with asyncio.timeout(SOON):
                while (await client.statistics())["left"]["left"]["in_flight"] < count:
                    await asyncio.sleep(0.005)

        first = ask(0, held={"left": str(folder / "never")})
        await in_left(1)
        behind = [ask(n, sleep={"work": 0.02}) for n in range(1, 5)]
        await in_left(5)
        before = [ask(n, held={"work": str(folder / "go")}) for n in range(5, 25)]  # they have not arrived in "left"
        await asyncio.sleep(0.1)
        await kill(client, "left")
        # It would have computed for ever, and they would have waited behind it.
        for error in await asyncio.wait_for(asyncio.gather(first, *behind, return_exceptions=True), SOON):
            assert isinstance(error, RequestFailedError)
            assert (error.stage, error.error_type) == ("left", "ProcessDied")
        assert not any(each.done() for each in before)
        (folder / "go").touch()
        answers = await asyncio.gather(*before)
        assert all(right_branching(n, each) for n, each in enumerate(answers, 5))


async def test_retries_hide_a_death(folder: Path) -> None:
    async with watched(branching(folder, retries=2), right_branching) as (pipeline, load):
        async with load.running():
            await kill(pipeline.client, "join")
            await serving(pipeline.client, "join")
            await load.more(2 * IN_FLIGHT)
        assert not load.failed
        await pipeline.as_before()


async def test_a_failed_stage_serves_again_when_the_window_has_passed(folder: Path) -> None:
    restart = RestartConfig(limit=1, window=2.0, backoff=0.05)
    config = make_pipeline(folder, step("start", next="work"), step("work", terminal=True), restart=restart)
    async with open_async(config) as client:
        for number in range(2):
            with pytest.raises(RequestFailedError, match="ended with code 9"):
                await client.submit(OmniRequest({"n": number, "poison": {"at": "work", "kind": "die"}}))
        with pytest.raises(RequestFailedError, match="stage 'work' has failed, as its process has died too often"):
            await asyncio.wait_for(client.submit(OmniRequest({"n": 1})), SOON)
        end = time.monotonic() + SOON
        while client.health()["work"]["state"] == "failed":
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        answer = await asyncio.wait_for(client.submit(OmniRequest({"n": 1})), SOON)
        assert answer["work"]["path"] == ["start", "work"]


async def test_repeated_deaths_fail_the_stage(folder: Path) -> None:
    restart = RestartConfig(limit=2, backoff=0.05)
    config = make_pipeline(folder, step("start", next="work"), step("work", terminal=True), restart=restart)
    reason = "ended with code 9"
    async with open_async(config) as client:
        for death in range(3):
            # Of another content each time: a content that is known to end its process is to blame, and not the process.
            deadly = OmniRequest({"n": death, "poison": {"at": "work", "kind": "die"}})
            with pytest.raises(RequestFailedError, match=reason) as caught:
                await client.submit(deadly)
            assert (caught.value.stage, caught.value.error_type) == ("work", "ProcessDied")
            if death < 2:
                assert (await client.submit(OmniRequest({"n": 1})))["work"]["path"] == ["start", "work"]
        assert client.health()["work"]["state"] == "failed"
        for _ in range(3):
            with pytest.raises(RequestFailedError, match=f"(?s)'work'.*{reason}") as caught:
                await asyncio.wait_for(client.submit(OmniRequest({"n": 1})), SOON)
            assert (caught.value.stage, caught.value.error_type) == ("work", StageFailedError.__name__)
        assert client.health()["start"]["state"] == "ready"


async def test_a_suspended_process_is_stalled_and_resumes(folder: Path) -> None:
    seconds = 5.0
    async with watched(branching(folder), right_branching) as (pipeline, load):
        client = pipeline.client
        pids = client.process_ids
        async with load.running():
            os.kill(pids["left"], signal.SIGSTOP)
            stopped = time.monotonic()
            try:
                while client.health()["left"]["state"] != "stalled":
                    assert time.monotonic() - stopped < SOON
                    await asyncio.sleep(0.05)
                await asyncio.sleep(seconds - (time.monotonic() - stopped))
            finally:
                os.kill(pids["left"], signal.SIGCONT)
            await load.more(2 * IN_FLIGHT)
            await serving(client, "left")
        assert not load.failed
        assert load.slowest >= seconds
        assert client.process_ids == pids
        await pipeline.as_before()


async def test_a_killed_rank_restarts_its_stage_under_load(folder: Path) -> None:
    config = make_pipeline(
        folder,
        StageConfig(name="start", factory="parallel_stages:vector", process="start", next="linear"),
        StageConfig(
            name="linear",
            factory="parallel_stages:linear",
            factory_args={"log": str(folder)},
            tp_size=2,
            terminal=True,
        ),
    )
    async with watched(config, lambda n, answer: len(answer["linear"]["y"]) == 64) as (pipeline, load):
        async with load.running():
            for rank in ("linear_tp1", "linear_tp0"):
                await kill(pipeline.client, rank, "linear")
                await serving(pipeline.client, "linear")
                await load.more(IN_FLIGHT)
        blamed(load.failed, "linear")
        assert len(load.failed) <= 2 * IN_FLIGHT
        assert pipeline.client.health()["start"]["restarts"] == 0
        await pipeline.as_before()
    for path in folder.glob("rank*"):
        path.unlink()


@pytest.mark.parametrize(
    ("factory", "timeout", "expected"),
    [
        ("never_ready", 5.0, r"'bad'.*startup_timeout of 5 s.*the last thing I said"),
        ("leaves_at_once", 500.0, r"'bad'.*ended with code 0"),
    ],
)
async def test_a_process_that_does_not_come_up_is_named(
    folder: Path, factory: str, timeout: float, expected: str
) -> None:
    bad = StageConfig(
        name="bad", factory=f"fault_stages:{factory}", process="bad", startup_timeout=timeout, terminal=True
    )
    with pytest.raises(StartupError, match=f"(?s){expected}"):
        async with asyncio.timeout(2 * SOON), open_async(make_pipeline(folder, step("start", next="bad"), bad)):
            pass


async def test_a_full_disk_fails_what_needs_it(folder: Path) -> None:
    """The relay's pool is made at the start; what does not fit it fails."""
    config = make_pipeline(
        folder,
        StageConfig(
            name="make",
            factory="fault_stages:limit_files",
            factory_args={"nbytes": 1_000_000},
            process="make",
            next="check",
        ),
        StageConfig(name="check", factory="fault_stages:check_vector", process="check", terminal=True),
    )
    small = {"nbytes": 20_000}

    def right(n: int, answer: dict[str, Any]) -> bool:
        return bool(answer["check"] == {"n": n, **small})

    async with watched(config, right, small) as (pipeline, load):
        async with load.running():
            with pytest.raises(RequestFailedError) as caught:
                await asyncio.wait_for(pipeline.client.submit(OmniRequest({"n": 1, "nbytes": 300_000_000})), SOON)
            assert (caught.value.stage, caught.value.error_type) == ("make", "RequestTooLargeError")
        assert not load.failed
        await pipeline.as_before()


@pytest.mark.full
async def test_the_coordinators_event_loop_is_never_blocked(folder: Path) -> None:
    with standstills() as seen:
        async with watched(branching(folder), right_branching) as (pipeline, load):
            await asyncio.sleep(0)
            seen.clear()  # startup and taking the baseline may take long
            async with load.running():
                for name in ("left", "work"):
                    await kill(pipeline.client, name)
                    await serving(pipeline.client, name)
                await load.more(1000)
            assert len(seen) > 1000
            assert max(seen) < (0.1, ""), max(seen)
            blamed(load.failed, "left", "work")
            asyncio.get_running_loop().call_soon(time.sleep, 0.3)
            await asyncio.sleep(0.1)
            assert max(seen) > (0.1, ""), "a loop that stands still is not seen"


@pytest.mark.full
async def test_the_first_tensor_does_not_block_a_loop_without_torch(folder: Path) -> None:
    """In a parent that has not imported torch; inputs and results hold tensors, and other requests go on meanwhile."""
    script = f"""
import asyncio, sys
from pathlib import Path
import death_harness
asyncio.run(death_harness.first_tensors(Path({str(folder)!r})))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    output = (await asyncio.wait_for(process.communicate(), 200))[0].decode().split()
    assert process.returncode == 0
    assert output[:1] == ["ok"], output


async def test_killed_parents_leave_nothing(folder: Path) -> None:
    """The parent, under load, with tensors in shared memory, is killed with -9: its children and files go with it."""
    shared = set(os.listdir("/dev/shm"))
    script = f"""
import asyncio, sys
from pathlib import Path
import death_harness
asyncio.run(death_harness.run_until_killed(Path({str(folder)!r})))
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert parent.stdout is not None
    pids = [int(each) for each in (await parent.stdout.readline()).split()]
    assert len(pids) == 2
    assert list(folder.glob("omni-*"))
    parent.kill()
    await parent.wait()
    end = time.monotonic() + SOON
    while any(map(lives, pids)) or list(folder.glob("omni-*")) or shared_memory(shared):
        assert time.monotonic() < end, [pid for pid in pids if lives(pid)]
        await asyncio.sleep(0.02)
