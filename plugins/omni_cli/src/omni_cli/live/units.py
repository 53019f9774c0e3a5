"""Units that join a running pipeline, and units that leave it.

A new unit joins: it is started, every other process takes it in, and only then may it get requests. An old one leaves: it gets no more,
finishes those that it has, and ends. Until the first is complete nothing has changed for any request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from omni_cli.deploy.budgets import check
from omni_cli.deploy.fitting import gpus_of
from omni_core.api import ConfigError, OmniError, PipelineConfig, StartupError
from omni_core.runtime_api import (
    PeerJoinedMessage,
    PeerLeftMessage,
    PlannedProcess,
    PreparedPipeline,
    Replica,
    Role,
    Running,
    ShutdownMessage,
    Supervisor,
    Tasks,
    UnitSpec,
    UnitState,
    concerns,
    is_interrupt,
    needs,
    plan,
    process_groups,
    process_names,
    traceback_of,
)

logger = logging.getLogger(__name__)

TOLD_SECONDS = 30.0
"""The time in which every process must have taken in a new unit."""

_ASK_SECONDS = 1.0
_OVER = (UnitState.FAILED, UnitState.STOPPED)

OnStep = Callable[[str], None]
"""Called with a line of text for each step."""


class Units:
    """Lets units join and leave one running pipeline. Called on its event loop."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._units = running.units
        self._numbers: dict[str, int] = {}
        self._planned: dict[str, list[PlannedProcess]] = {}
        """By unit, its processes as they were planned when it was started."""
        self._remember(plan(running.config))
        self._tasks = Tasks()

    def close(self) -> None:
        """Go on with nothing: the runner ends all units."""
        for task in self._tasks:
            task.cancel()

    def serving(self, group: str) -> dict[int, Supervisor]:
        """Return the units of a process group that get requests, by slot."""
        found = [unit for unit in self._units.values() if unit.spec.group == group and unit.role is Role.SERVING]
        return {unit.spec.slot: unit for unit in found}

    async def join(self, config: PipelineConfig, group: str, slot: int, on_step: OnStep) -> Supervisor:
        """Start a unit, and return it when every process knows it; its caller lets it serve.

        If that fails, or is cancelled, nothing is left of it.

        Raises:
            ConfigError: the config cannot be used. StartupError: it does not start, or another process does not take it in.
        """
        replica = self._new_replica(group, slot)
        replicas: dict[str, list[Replica]] = {name: [] for name in process_groups(config)}
        for other in self._units.values():
            if other.role is Role.SERVING:  # what drains has nothing to do with what joins
                replicas[other.spec.group].append(Replica(other.spec.slot, other.spec.replica, other.spec.name))
        replicas[group].append(replica)
        there = [each for name in self._units for each in self._planned.get(name, [])]
        planned, prepared = await asyncio.to_thread(self._prepared, config, replicas, replica.unit, there)
        self._remember(planned, replica.unit)
        spec = next(each for each in prepared.units if each.name == replica.unit)
        joined = self._links(prepared, spec)
        unit = Supervisor(spec, config.restart, self._running.owner, self._running.placing)
        unit.role = Role.JOINING
        self._units[spec.name] = unit
        self._running.placing.add(spec)
        on_step(f"{spec.name}: starting")
        try:
            for need in needs([each for each in planned if each.unit == spec.name]):
                await self._running.launcher.add(need)
            self._announce(spec, joined)
            unit.launch()
            await self._started(unit)
            self._running.owner.unit_is_back(unit)
            await self._told(unit)
            if unit.life.state is not UnitState.READY:
                raise StartupError(f"stage {unit.label!r} has died after its start: {unit.life.reason}")
        except BaseException as error:
            await asyncio.wait([self._begin(self._remove(unit))])  # to its end, although this may be cancelled again
            if issubclass(type(error), StartupError):
                raise StartupError(f"{error}\n{spec.name} was not added; what ran before serves as before") from None
            raise
        on_step(f"{spec.name}: ready")
        return unit

    def _new_replica(self, group: str, slot: int) -> Replica:
        there = [unit.spec.replica for unit in self._units.values() if unit.spec.group == group]
        number = max([self._numbers.get(group, 0), *(each + 1 for each in there)])
        names = {process.name for unit in self._units.values() for process in unit.spec.processes} | self._units.keys()
        ranks = next((len(unit.spec.processes) for unit in self._units.values() if unit.spec.group == group), 1)
        while not names.isdisjoint(
            [f"{group}.{number}", *process_names(f"{group}.{number}", ranks)]
        ):  # another group's
            number += 1
        self._numbers[group] = number + 1
        return Replica(slot, number, f"{group}.{number}")

    def _prepared(
        self,
        config: PipelineConfig,
        replicas: Mapping[str, Sequence[Replica]],
        new: str,
        there: Sequence[PlannedProcess],
    ) -> tuple[list[PlannedProcess], PreparedPipeline]:
        """Plan the pipeline with a new unit. Its devices must have room beside all that is ``there``, what drains included."""
        planned = plan(config, replicas)
        joining = [process for process in planned if process.unit == new]
        if any(process.gpus for process in joining):
            check([each for each in (*there, *joining) if each.host is None and each.gpus], gpus_of(config))
        return planned, self._running.prepare(config, replicas=replicas)

    def _remember(self, planned: Sequence[PlannedProcess], unit: str | None = None) -> None:
        """Keep the plan of a unit, or of all."""
        for process in planned:
            if unit in (None, process.unit):
                self._planned.setdefault(process.unit, []).append(process)

    def _links(self, prepared: PreparedPipeline, new: UnitSpec) -> dict[str, PeerJoinedMessage]:
        """Return what the other units must be told of a new one, by their names.

        Raises:
            ConfigError: a process lacks a relay for it.
        """
        found = {}
        leader = new.processes[0]
        for planned in prepared.units:
            if planned.name == new.name:
                continue
            other, mine = planned.processes[0], self._units[planned.name].spec.processes[0]
            near, across = other.relay_towards.get(new.endpoint), other.relay_across.get(new.endpoint)
            relays = {near, across, leader.relay_towards.get(mine.endpoint), leader.relay_across.get(mine.endpoint)}
            for name in relays - {None} - mine.relays.keys() - mine.spare_relays.keys():
                raise ConfigError(
                    f"{new.name} would exchange payloads with {mine.name} by the relay {name!r}, which that process was "
                    "started without; restart the pipeline with this config"
                )
            same_gpu = [stage for stage, endpoints in other.same_gpu.items() if new.endpoint in endpoints]
            found[planned.name] = PeerJoinedMessage(new.endpoint, new.stage_names, new.replica, near, across, same_gpu)
        return found

    def _announce(self, new: UnitSpec, joined: Mapping[str, PeerJoinedMessage]) -> None:
        """Take a new unit into the specs of the others, for their restarts, and tell their processes."""
        for name, message in joined.items():
            unit = self._units[name]
            for process in unit.spec.processes:
                process.add_peer(message)
            if unit.life.state not in _OVER:
                self._running.control.tell(unit.spec.endpoint, message)
        for stage in new.stage_names:
            self._running.entry[stage][new.replica] = new.endpoint

    async def _started(self, unit: Supervisor) -> None:
        try:
            await asyncio.shield(unit.started)
        except asyncio.CancelledError:
            if unit.started.cancelled():
                raise OmniError("the pipeline was stopped") from None
            raise

    async def _told(self, new: Supervisor) -> None:
        """Wait until every process knows the new unit. One that is started meanwhile has it in its spec, and answers when it is up."""
        loop = asyncio.get_running_loop()
        until = loop.time() + TOLD_SECONDS
        names = {name for name, unit in self._units.items() if unit is not new and unit.role is Role.SERVING}
        while True:
            there = [self._units[name] for name in names if name in self._units]
            waiting = {unit.spec.processes[0].name: unit for unit in there if unit.life.state not in _OVER}
            asked = [unit.spec.processes[0] for unit in waiting.values() if unit.life.serves]
            answered = await self._running.observation.counters(asked, _ASK_SECONDS)
            names = {unit.spec.name for name, unit in waiting.items() if name not in answered}
            if not names:
                return
            if loop.time() > until:
                late = ", ".join(sorted(names))
                raise StartupError(f"{late}: no answer for {TOLD_SECONDS:g} s, so it does not know the new unit")
            await asyncio.sleep(0.0 if asked else _ASK_SECONDS / 10)  # those that restart cannot be asked yet

    def leave(self, unit: Supervisor, on_step: OnStep) -> asyncio.Task[None]:
        """Give a unit no more requests, and end it when those that it has are over. The task goes on if its waiter is cancelled."""
        unit.role = Role.DRAINING

        async def drain() -> None:
            held = sum(concerns(request, unit.spec) for request in self._running.coordinator.attempts().values())
            on_step(f"{unit.spec.name}: drains {held} request{'' if held == 1 else 's'}")
            await self._running.coordinator.drained(lambda request: concerns(request, unit.spec))
            await self._remove(unit)
            on_step(f"{unit.spec.name}: ended")

        return self._begin(drain())

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.start(task)
        return task

    async def _remove(self, unit: Supervisor) -> None:
        """End a unit that holds no request, and let every process forget it."""
        spec, control = unit.spec, self._running.control
        if unit.life.serves:
            for process in spec.processes:
                control.tell(process.endpoint, ShutdownMessage())
        unit.begin_stop()
        await unit.finish_stop(self._running.stop_timeout)
        self._planned.pop(spec.name, None)
        self._units.pop(spec.name, None)  # the runner may have ended it meanwhile
        for other in self._units.values():
            for process in other.spec.processes:
                process.drop_peer(spec.endpoint)
            if other.life.state not in _OVER:
                control.tell(other.spec.endpoint, PeerLeftMessage(spec.endpoint))
        for process in spec.processes:
            control.drop(process.endpoint)
        for stage in spec.stage_names:
            self._running.entry[stage].pop(spec.replica, None)
        self._running.choice.drop(spec.group, spec.replica)
        self._running.placing.remove(spec)
        for place in spec.places:
            try:
                await self._running.launcher.remove(place)
            except BaseException as error:  # a launcher is anyone's code
                if issubclass(type(error), asyncio.CancelledError) or is_interrupt(error):
                    raise
                logger.error("the launcher has not given back the place of %s\n%s", place, traceback_of(error))
