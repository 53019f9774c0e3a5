"""Stages that are replaced and scaled while requests run, and what may go wrong meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fault_harness import Load, branching, right_branching, right_streaming, streaming
from live_harness import SECONDS, ask, held, two, until
from pipelines import make_pipeline

from omni_core.client import open_async
from omni_core.config.schema import StageConfig
from omni_core.errors import ConfigError, OmniError, RequestAbortedError, RequestFailedError, StartupError
from omni_core.protocol.messages import OmniRequest

pytest.importorskip("omni_cli.live")


class Steps(list[str]):
    """The lines of an operation; ``seen`` waits for one."""

    def __call__(self, line: str) -> None:
        self.append(line)

    async def seen(self, part: str) -> None:
        await until(lambda: any(part in line for line in self))


# --- under load ----------------------------------------------------------------------------------------------------------
@pytest.mark.full
async def test_every_stage_is_replaced_and_one_scaled_under_load_and_no_request_notices(folder: Path) -> None:
    async with open_async(branching(folder)) as pipe, Load(pipe, right_branching).running() as load:
        before = pipe.process_ids
        for stage in pipe.config.stages:
            await pipe.replace(stage.name)
        await pipe.scale("work", 3)
        await load.more(320)  # of which the first 64 have gone to the older units
        assert set(pipe.health()) == {"start.1", "work.1", "left.1", "right.1", "join.1", "work.2", "work.3"}
        assert not set(before.values()) & set(pipe.process_ids.values())
        shares = [(await pipe.statistics())[f"work.{n}"]["work"]["completed"] for n in (2, 3)]
        await pipe.scale("work", 1)
        assert min(shares) > 20
    assert load.failed == []


@pytest.mark.full
async def test_streams_between_stages_and_processes_of_several_stages(folder: Path) -> None:
    async with open_async(streaming(folder, together=True)) as pipe, Load(pipe, right_streaming).running() as load:
        with pytest.raises(ConfigError, match="stage 'consume' shares the process 'all' with produce"):
            await pipe.replace("consume")
        change = await pipe.scale("all", 2)
        assert (change.group, change.started, change.ended) == ("all", ["all.1"], [])
        assert (await pipe.replace("all")).ended == ["all", "all.1"]
        assert {unit["stages"][1] for unit in pipe.health().values()} == {"consume"}
    assert load.failed == []


@pytest.mark.full
async def test_streams_to_clients_are_not_cut(folder: Path) -> None:
    config = make_pipeline(
        folder,
        StageConfig(name="begin", factory="live_stages:begin", process="begin", next="work"),
        StageConfig(name="work", factory="live_stages:Counting", process="work", terminal=True),
    )
    async with open_async(config) as pipe:

        async def listen(count: int) -> int:
            events = [event async for event in pipe.stream(OmniRequest({"count": count}))]
            assert [event.data for event in events[:-1]] == list(range(count))
            pid: int = events[-1].data["pid"]
            return pid

        old = pipe.process_ids["work"]
        listening = [asyncio.create_task(listen(100 + n)) for n in range(32)]
        await until(lambda: pipe._runner.coordinator.in_flight == 32)
        replacing = asyncio.create_task(pipe.replace("work"))
        await until(lambda: pipe.health().get("work", {}).get("state") == "draining")
        new = pipe.process_ids["work.1"]
        assert await listen(3) == new, "a new request has to go to the new unit, though the old one is there"
        assert set(await asyncio.gather(*listening)) == {old}
        await replacing
        assert set(pipe.process_ids) == {"begin", "work.1"}


# --- replacements that do not start ----------------------------------------------------------------------------------------
REFUSED: list[tuple[dict[str, Any], type[OmniError], str]] = [
    ({"factory_args.makr": "new"}, StartupError, r"'live_stages:work' has no such parameter; did you mean 'mark'"),
    ({"factory_args.weights": "/no/weights"}, StartupError, r"FileNotFoundError.*/no/weights"),
    (
        {"factory": "live_stages:wrok"},
        ConfigError,
        r"stages\[work\].factory: .* no attribute 'wrok'; did you mean 'work'",
    ),
    ({"env.A=B": "1"}, ConfigError, r"no environment variable can have this name"),
    ({"factry": 1}, ConfigError, r"'factry' is not a field here; did you mean 'factory'"),
    ({"next": "begin"}, ConfigError, r"'next' cannot be changed while the pipeline runs"),
    ({"replicas": 2}, ConfigError, r"'replicas' cannot be changed.*omni stage scale"),
    ({"tp_size": "two"}, ConfigError, r"stages\[work\].tp_size: must be int, is 'two'"),
]


@pytest.mark.full
async def test_a_replacement_that_does_not_start_says_why_and_the_old_unit_serves(folder: Path) -> None:
    async with open_async(two(folder)) as pipe:
        config, pids = pipe.config, pipe.process_ids
        for settings, error, message in REFUSED:
            with pytest.raises(error, match=message):
                await pipe.replace("work", settings)
            assert (pipe.config, pipe.process_ids) == (config, pids), settings
            assert (await ask(pipe))["mark"] == "old"
        await pipe.replace("work", {"factory_args.mark": "new"})
        assert (await ask(pipe))["mark"] == "new"
        assert pipe.config.stage("work").factory_args == {"mark": "new"}


async def test_a_new_unit_that_is_killed_while_it_starts_changes_nothing(folder: Path) -> None:
    async with open_async(two(folder)) as pipe:
        building = folder / "building"
        replacing = asyncio.create_task(pipe.replace("work", {"factory_args.building": str(building)}))
        await until(lambda: building.exists() and bool(building.read_text()))
        assert pipe.health()["work.1"]["state"] == "starting"
        assert (await ask(pipe))["mark"] == "old", "requests are served while a unit starts"
        os.kill(int(building.read_text()), signal.SIGKILL)
        with pytest.raises(StartupError, match=r"killed by signal 9 \(SIGKILL\).*\nwork.1 was not added"):
            await replacing
        assert set(pipe.health()) == {"begin", "work"}
        await pipe.replace("work")
        assert set(pipe.health()) == {"begin", "work.2"}
        building.unlink()


async def test_another_process_that_dies_while_a_unit_joins_knows_it_all_the_same(folder: Path) -> None:
    async with open_async(two(folder, retries=1)) as pipe:
        for _ in range(3):
            steps = Steps()
            replacing = asyncio.create_task(pipe.replace("work", on_step=steps))
            await steps.seen("starting")
            os.kill(pipe.process_ids["begin"], signal.SIGKILL)
            await replacing
            assert (await ask(pipe))["pid"] in pipe.process_ids.values()
        os.kill(pipe.process_ids["begin"], signal.SIGKILL)
        assert (await ask(pipe))["mark"] == "old"


@pytest.mark.full
async def test_a_process_that_does_not_answer_stops_an_operation_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_cli.live.units.TOLD_SECONDS", 1.0)
    async with open_async(two(folder)) as pipe:
        os.kill(pipe.process_ids["begin"], signal.SIGSTOP)
        try:
            with pytest.raises(StartupError, match=r"begin: no answer for 1 s, so it does not know the new unit"):
                await pipe.replace("work")
        finally:
            os.kill(pipe.process_ids["begin"], signal.SIGCONT)
        assert set(pipe.health()) == {"begin", "work"}
        assert (await ask(pipe))["mark"] == "old"


# --- units that drain --------------------------------------------------------------------------------------------------------
async def test_an_old_unit_that_is_killed_while_it_drains_fails_what_it_held_and_nothing_else(folder: Path) -> None:
    async with open_async(two(folder)) as pipe:
        tasks, steps = await held(pipe, 3, folder / "go"), Steps()
        old = pipe.process_ids["work"]
        replacing = asyncio.create_task(pipe.replace("work", {"factory_args.mark": "new"}, steps))
        await steps.seen("drains 3 requests")
        assert pipe.health()["work"]["state"] == "draining"
        os.kill(old, signal.SIGKILL)
        for task in tasks:
            with pytest.raises(RequestFailedError, match=r"ProcessDied.*SIGKILL"):
                await task
        (folder / "go").touch()
        assert (await ask(pipe))["mark"] == "new"
        await replacing
        assert set(pipe.health()) == {"begin", "work.1"}


async def test_what_a_killed_draining_unit_held_is_run_again_by_the_new_one(folder: Path) -> None:
    async with open_async(two(folder, retries=1)) as pipe:
        tasks, steps = await held(pipe, 3, folder / "go"), Steps()
        replacing = asyncio.create_task(pipe.replace("work", {"factory_args.mark": "new"}, steps))
        await steps.seen("drains 3 requests")
        os.kill(pipe.process_ids["work"], signal.SIGKILL)
        (folder / "go").touch()
        assert [answer["mark"] for answer in await asyncio.gather(*tasks)] == ["new"] * 3
        await replacing
        assert set(pipe.health()) == {"begin", "work.1"}


@pytest.mark.full
async def test_a_request_that_is_aborted_while_its_unit_drains_ends_there(folder: Path) -> None:
    async with open_async(two(folder)) as pipe:
        tasks, steps = await held(pipe, 2, folder / "go"), Steps()
        replacing = asyncio.create_task(pipe.replace("work", on_step=steps))
        await steps.seen("drains 2 requests")
        for n in range(2):
            await pipe.abort(f"held {n}")
        for task in tasks:
            with pytest.raises(RequestAbortedError):
                await task
        await replacing  # though the compute of what was aborted goes on
        assert set(pipe.health()) == {"begin", "work.1"}


# --- whole states --------------------------------------------------------------------------------------------------------------
@pytest.mark.full
async def test_an_operation_that_is_cancelled_before_the_new_unit_serves_changes_nothing(folder: Path) -> None:
    async with open_async(two(folder)) as pipe:
        building, pids = folder / "building", pipe.process_ids
        replacing = asyncio.create_task(pipe.replace("work", {"factory_args.building": str(building)}))
        await until(lambda: building.exists())
        replacing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await replacing
        assert pipe.process_ids == pids
        assert pipe.config.stage("work").factory_args == {}
        building.unlink()


@pytest.mark.full
async def test_an_operation_that_is_cancelled_later_lets_the_old_unit_finish(folder: Path) -> None:
    async with open_async(two(folder)) as pipe:
        tasks, steps = await held(pipe, 1, folder / "go"), Steps()
        replacing = asyncio.create_task(pipe.replace("work", {"factory_args.mark": "new"}, steps))
        await steps.seen("drains 1 request")
        replacing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await replacing
        assert (await ask(pipe))["mark"] == "new"
        await pipe.replace("work", {"factory_args.mark": "newer"})  # the next does not wait for the first's
        assert (await ask(pipe))["mark"] == "newer"
        (folder / "go").touch()
        assert (await tasks[0])["mark"] == "old"
        await until(lambda: set(pipe.health()) == {"begin", "work.2"})


@pytest.mark.full
async def test_a_second_operation_is_refused_and_names_the_first(folder: Path) -> None:
    async with open_async(two(folder)) as pipe:
        (task,), steps = await held(pipe, 1, folder / "go"), Steps()
        replacing = asyncio.create_task(pipe.replace("work", on_step=steps))
        await steps.seen("drains 1 request")
        with pytest.raises(
            OmniError, match=r"scale begin 2: 'replace work' has run for \d+ s; repeat this when it has"
        ):
            await pipe.scale("begin", 2)
        (folder / "go").touch()
        await asyncio.gather(task, replacing)
        assert (await pipe.scale("begin", 2)).started == ["begin.1"]


@pytest.mark.full
async def test_a_pipeline_that_is_closed_meanwhile_ends_in_order(folder: Path) -> None:
    async with open_async(two(folder)) as pipe:
        building = folder / "building"
        replacing = asyncio.create_task(pipe.replace("work", {"factory_args.building": str(building)}))
        await until(lambda: building.exists())
    with pytest.raises(OmniError, match="the pipeline was stopped"):
        await replacing
    building.unlink()


# --- numbers of replicas ------------------------------------------------------------------------------------------------------
@pytest.mark.full
async def test_a_stage_scales_with_its_queue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.live.autoscaler.LOOK_SECONDS", 0.1)
    autoscale = {"max": 3, "queue_seconds": 0.2, "after": 0.1, "idle_seconds": 0.3}
    async with open_async(two(folder, autoscale=autoscale)) as pipe:
        assert set(pipe.health()) == {"begin", "work"}
        pids: set[int] = set()

        async def keep_asking() -> None:
            while len(pids) < 3:
                pids.add((await ask(pipe, n=0, seconds=0.05))["pid"])

        async with asyncio.timeout(2 * SECONDS):
            await asyncio.gather(*(keep_asking() for _ in range(40)))
        await until(lambda: set(pipe.health()) == {"begin", "work"})
        assert (await ask(pipe))["mark"] == "old"


@pytest.mark.parametrize(
    ("autoscale", "message"),
    [
        ({}, r"stages\[work\].autoscale: .*max"),
        ({"max": 2, "quque_seconds": 1}, r"no such setting; did you mean 'queue_seconds'"),
        ({"max": 2, "min": 3}, r"min is 3, which is more than max, 2"),
        ({"max": 4, "min": 2}, r"stages\[work\].replicas: is 1, not between 2 and 4"),
    ],
)
async def test_wrong_settings_of_autoscale_are_refused_at_the_start(
    folder: Path, autoscale: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        async with open_async(two(folder, autoscale=autoscale)):
            pass
