"""The conformance suite of launchers (contract: :class:`omni_core.machines.Launcher`): real processes on the machines that one grants."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from attrs import evolve

from omni_core.api import (
    ConfigError,
    Grant,
    Launcher,
    LauncherOptions,
    Need,
    PipelineConfig,
    StageConfig,
    StartupError,
    load,
)
from omni_testing.driving import driven
from omni_testing.launcher_run import PATIENCE, Run

LOSS_SECONDS = 5.0
"""Seconds until the processes of a machine that was lost have ended."""


class LauncherConformance:
    """Subclass it, name your launcher, and pytest runs every test.

    Attributes:
        launcher: reference of the class, ``"package.module:Class"``.
        hosts: two names that ``Need.host`` may have, for machines that differ; empty: the launcher has one machine.
        gpus: how many GPUs, real or not, one of its machines has at least that it grants; 0: it grants none of its own accord.
        settings: ``launcher.settings`` of the config.
    """

    launcher: ClassVar[str]
    hosts: ClassVar[tuple[str, ...]] = ()
    gpus: ClassVar[int] = 0
    settings: ClassVar[dict[str, Any]] = {}

    def config(self, config: PipelineConfig) -> PipelineConfig:
        """Return the config of the suite's run with what the launcher reads beyond its settings."""
        return config

    @asynccontextmanager
    async def machines(self) -> AsyncIterator[None]:
        """Whatever the launcher needs around it: servers, a cluster."""
        yield

    async def lose(self, machine: str) -> None:
        """Take a machine away, by its name. Overridden by launchers of several machines."""
        pytest.skip("this launcher has one machine, which is the runner's")

    async def bring_back(self, machine: str) -> None:
        """Undo :meth:`lose`, or offer another machine in its place."""

    def impossible(self) -> Need:
        """Return a need that can never be met."""
        return Need("impossible", ("impossible",), host="no-such-host")

    def needs(self) -> list[Need]:
        """Two units on this machine or anywhere, and, with several machines, two on the first host and one on the second."""
        found = [Need("a", ("a",)), Need("b", ("b",))]
        if self.hosts:
            first, second = self.hosts
            found += [Need("c", ("c",), host=first), Need("d", ("d",), host=first), Need("e", ("e",), host=second)]
        return found

    def options(self, directory: Path) -> LauncherOptions:
        """The launcher's options for a run with :meth:`needs`."""
        stages = [
            StageConfig(
                name=need.unit,
                factory="omni_testing.launcher_run:report",
                process=need.unit,
                terminal=True,
                host=need.host,
            )
            for need in self.needs()
        ]
        config = self.config(PipelineConfig(model_path="none", stages=stages))
        return LauncherOptions(f"omni://{directory.name}", directory, config, dict(self.settings))

    def _made(self, options: LauncherOptions) -> Launcher:
        made: Launcher = load(self.launcher)(options)
        return made

    @asynccontextmanager
    async def run(
        self, variables: Mapping[str, str] | None = None, needs: list[Need] | None = None
    ) -> AsyncIterator[Run]:
        """A run whose needs (by default :meth:`needs`) are met; its processes have ``variables``."""
        with tempfile.TemporaryDirectory(prefix="omni-", dir="/tmp") as folder:
            async with self.machines():
                options = self.options(Path(folder))
                run = Run(self._made(options), options.run, self.needs() if needs is None else needs, variables)
                try:
                    await run.acquire()
                    yield run
                finally:
                    await run.close()

    async def _grants(self, run: Run) -> dict[str, Grant]:
        async with asyncio.timeout(PATIENCE):
            return {need.unit: await run.launcher.place(need.unit) for need in self.needs()}

    @driven
    async def test_units_of_one_host_are_on_one_machine_and_others_are_not(self) -> None:
        async with self.run() as run:
            machines = {unit: grant.machine for unit, grant in (await self._grants(run)).items()}
            by_name: dict[str, set[str]] = {}
            for machine in machines.values():
                by_name.setdefault(machine.name, set()).add(machine.directory)
            assert all(len(each) == 1 for each in by_name.values()), f"one machine has several folders: {by_name}"
            if self.hosts:
                assert machines["c"].name == machines["d"].name, "units of one host are on two machines"
                assert machines["c"].name != machines["e"].name, "two hosts are one machine"
                assert run.launcher.network_spec is not None, "several machines need a network"
            if not run.launcher.anywhere:
                assert machines["a"].name == machines["b"].name == run.launcher.here.name

    @driven
    async def test_units_that_share_a_device_are_on_one_machine_and_see_it(self) -> None:
        if not self.gpus:
            pytest.skip("this launcher grants no devices")
        apart = [Need("z", ("z",), gpus=(5,))] if self.gpus > 1 else []
        needs = [Need("x", ("x",), gpus=(3,)), Need("y", ("y",), gpus=(3,)), *apart]
        async with self.run(needs=needs) as run:
            grants = {need.unit: await run.launcher.place(need.unit) for need in needs}
            seen = {need.unit: _seen(grants[need.unit], *need.gpus) for need in needs}
            assert seen["x"] == seen["y"], "two units that name one device have two"
            assert not apart or seen["z"] != seen["x"], "two devices of the pipeline are one"
            (spec,), _ = await run.placing.place(run.units["x"], 0)
            assert spec.stages[0].injected["device"] == f"cuda:{grants['x'].devices.get(3, 3)}"

    @driven
    async def test_every_unit_gets_a_process_that_serves(self) -> None:
        async with self.run() as run:
            pids = [(await run.start(need.unit)).pid for need in self.needs()]
            answers = [await run.ask(need.unit) for need in self.needs()]
            assert [answer["pid"] for answer in answers] == pids
            assert len(set(pids)) == len(pids)

    @driven
    async def test_a_process_has_the_variables_of_its_spec_and_its_grant(self) -> None:
        async with self.run({"OMNI_TEST_VARIABLE": "its own"}) as run:
            for need in (self.needs()[0], self.needs()[-1]):
                grant = await run.launcher.place(need.unit)
                await run.start(need.unit)
                environment = (await run.ask(need.unit))["environment"]
                assert environment.get("OMNI_TEST_VARIABLE") == "its own", "a process lacks a variable of its spec"
                assert dict(grant.environment).items() <= environment.items(), "a process lacks a variable of its grant"

    @driven
    async def test_the_end_of_a_process_is_told_once_with_its_cause(self) -> None:
        async with self.run() as run:
            for need in self.needs():
                process = await run.start(need.unit)
                run.ended.clear()
                process.kill()
                await run.until(lambda: bool(run.ended), "the end of a killed process", LOSS_SECONDS)
                await asyncio.sleep(0.1)
                assert run.ended == [process], "the end of one process was told more than once"
                assert process.code == -9
                assert "SIGKILL" in process.reason

    @driven
    async def test_a_process_can_be_started_again(self) -> None:
        async with self.run() as run:
            for need in self.needs():
                first = await run.start(need.unit)
                first.kill()
                async with asyncio.timeout(PATIENCE):
                    await first.ended
                second = await run.start(need.unit)
                assert (await run.ask(need.unit))["pid"] == second.pid != first.pid

    @driven
    async def test_a_process_ends_when_it_is_told_to(self) -> None:
        async with self.run() as run:
            for need in self.needs():
                process = await run.start(need.unit)
                process.say_stop()
                await run.until(lambda process=process: not process.running, "the end of a process")  # type: ignore[misc]
                assert process.code == 0, process.reason

    @driven
    async def test_the_log_of_a_process_arrives(self) -> None:
        async with self.run() as run:
            unit = run.units[self.needs()[-1].unit]
            (spec,), launch = await run.placing.place(unit, 0)
            spec = evolve(spec, stages=[evolve(spec.stages[0], factory="omni_testing.launcher_run:speak")])
            process = launch(spec, run.ended.append)
            await run.until(lambda: not process.running, "the end of a process that cannot start")
            assert process.code == 7
            assert "my last words" in process.last_lines, "what a process has written did not arrive"

    @driven
    async def test_a_need_that_cannot_be_met_is_an_error_that_names_it(self) -> None:
        need = self.impossible()
        with tempfile.TemporaryDirectory(prefix="omni-", dir="/tmp") as folder:
            async with self.machines():
                launcher = self._made(self.options(Path(folder)))
                try:
                    with pytest.raises(StartupError, match=f"{need.unit}|{need.host}"):
                        async with asyncio.timeout(PATIENCE):
                            await launcher.acquire([need])
                finally:
                    await launcher.release()

    @driven
    async def test_a_unit_may_be_added_while_others_run(self) -> None:
        async with self.run() as run:
            if type(run.launcher).add is Launcher.add:
                pytest.skip("this launcher adds no units to a run (`add`), so its stages cannot be replaced or scaled")
            before = {need.unit: (await run.start(need.unit)).pid for need in self.needs()}
            late = evolve(self.needs()[-1], unit="late", stages=("late",))
            async with asyncio.timeout(PATIENCE):
                await run.launcher.add(late)
            run.add(late)
            process = await run.start("late")
            assert (await run.ask("late"))["pid"] == process.pid
            after = {unit: (await run.ask(unit))["pid"] for unit in before}
            assert after == before, "a unit that ran before does not serve any more"
            process.kill()
            async with asyncio.timeout(PATIENCE):
                await process.ended
                await run.launcher.remove("late")
            await self._grants(run)  # the others have their places still

    @driven
    async def test_a_unit_that_cannot_be_added_changes_nothing(self) -> None:
        async with self.run() as run:
            need = self.impossible()
            with pytest.raises(StartupError, match=f"{need.unit}|{need.host}"):
                async with asyncio.timeout(PATIENCE):
                    await run.launcher.add(need)
            for each in self.needs():
                await run.start(each.unit)

    @driven
    async def test_an_unknown_setting_is_refused(self) -> None:
        with tempfile.TemporaryDirectory(prefix="omni-", dir="/tmp") as folder:
            async with self.machines():
                options = self.options(Path(folder))
                with pytest.raises(ConfigError, match="nonesuch"):
                    self._made(evolve(options, settings={**options.settings, "nonesuch": 1}))

    @driven
    async def test_release_can_be_repeated_and_leaves_no_process(self) -> None:
        with tempfile.TemporaryDirectory(prefix="omni-", dir="/tmp") as folder:
            async with self.machines():
                options = self.options(Path(folder))
                before = _children()
                run = Run(self._made(options), options.run, self.needs())
                await run.acquire()
                for need in self.needs():
                    await run.start(need.unit)
                await run.close()
                await run.launcher.release()
                await run.until(lambda: _children() <= before, "the end of every process that the launcher started")

    @driven
    async def test_a_lost_machine_ends_its_processes_and_is_replaced(self) -> None:
        async with self.run() as run:
            machines = {unit: grant.machine.name for unit, grant in (await self._grants(run)).items()}
            lost = machines["c" if self.hosts else "a"]
            there = [unit for unit, name in machines.items() if name == lost]
            processes = [await run.start(unit) for unit in there]
            others = [await run.start(need.unit) for need in self.needs() if need.unit not in there]
            await self.lose(lost)
            await run.until(
                lambda: not any(each.running for each in processes),
                "the end of a lost machine's processes",
                LOSS_SECONDS,
            )
            assert sorted(each.spec.name for each in run.ended) == there, (
                "an end was told more than once, or of another"
            )
            assert all("gone" in each.reason or "lost" in each.reason for each in processes), processes[0].reason
            assert all(each.running for each in others)
            await self.bring_back(lost)
            for unit in there:
                process = await run.start(unit)
                assert (await run.ask(unit))["pid"] == process.pid


def _seen(grant: Grant, device: int) -> tuple[str, str]:
    """Return the machine and the physical id of one of the pipeline's devices."""
    visible = grant.environment.get("CUDA_VISIBLE_DEVICES")
    number = grant.devices.get(device, device)
    return grant.machine.name, visible.split(",")[number] if visible is not None else str(number)


def _children() -> set[int]:
    """The processes of this program."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(folder.name))
    return found
