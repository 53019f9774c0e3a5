"""Units in simulated time: what starts and dies together, by the runtime's own rules for restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import define, field

from omni_core.config.placement import PlannedProcess
from omni_core.config.schema import StageConfig
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.processes import unit as life
from omni_core.processes.deaths import DeathReport
from omni_core.processes.unit import Unit, UnitState
from omni_core.protocol.messages import ErrorInfo
from omni_core.protocol.specs import StageSpec
from omni_core.stage import requests as bits
from omni_planner.failures import Failure
from omni_planner.machine import Action, Clock
from omni_planner.profile import CLIENT
from omni_planner.replica import Loop, Replica
from omni_planner.requests import Flight
from omni_planner.stages import DONE, PAYLOAD

_REPORT_SECONDS = 0.02
"""Seconds in which what a process had sent before its death is read."""

_REASON = "its process died (simulated)"


@define(eq=False)
class SimulatedUnit:
    """A process with its replicas of stages, or the ranks of a tensor parallel stage.

    Attributes:
        name: of its first process. number: of the replica. host: the machine's name. places: its processes, one for each rank.
        loop: sends and receives for it. replicas: by stage. unsent: messages of requests that wait until it serves.
        lives: its processes were started and have not ended. is_away: its host is lost. wants_start: it is started when its host is
            back. starts: how often it was started.
    """

    name: str
    number: int
    host: str | None
    group: str
    stages: Sequence[StageConfig]
    life: Unit
    loop: Loop = field(init=False)
    places: Sequence[PlannedProcess] = ()
    replicas: dict[str, Replica] = field(factory=dict)
    unsent: list[tuple[Flight, Action]] = field(factory=list)
    lives: bool = True
    is_away: bool = False
    wants_start: bool = False
    starts: int = 1

    def holds(self, flight: Flight) -> bool:
        """Return whether a request may have something in it."""
        return all(flight.placement.get(each.name, 0) == self.number for each in self.stages)


def sent(flight: Flight, what: str, source: str, target: str) -> None:
    """Note that something of a request was sent to a stage, and arrives there even if the sender dies."""
    flight.reached.add(target)
    if source != CLIENT:
        bit = bits.PAYLOAD if what == PAYLOAD else bits.DONE if what == DONE else 0
        flight.came[source, target] = flight.came.get((source, target), 0) | bit


@define
class Restarts:
    """Ends units, and starts them again as the parent of a pipeline does.

    Args:
        flights: the attempts by name. perform: carries out actions of the machine. build: makes a unit's replicas. end: ends them.
        start: works for as long as the start of a unit takes, then calls.
    """

    clock: Clock
    units: Sequence[SimulatedUnit]
    machine: RequestMachine
    flights: Mapping[str, Flight]
    perform: Callable[[Iterable[Any]], None]
    build: Callable[[SimulatedUnit], None]
    end: Callable[[SimulatedUnit], None]
    start: Callable[[SimulatedUnit, Action], None]
    deaths: int = 0

    def begin(self, failures: Iterable[Failure]) -> None:
        """Plan failures. The units serve."""
        for unit in self.units:
            unit.life.launch(0.0)
            unit.life.process_is_ready(unit.name, 0.0)
        for each in failures:
            self.clock.after(each.at, partial(self._strike, each))

    def must_wait(self, unit: SimulatedUnit, flight: Flight, stage: str, send: Action) -> bool:
        """Keep a message for a unit that does not serve, or fail its request if the unit never will; ``False`` if it serves."""
        if unit.life.serves:
            return False
        if unit.life.state is UnitState.FAILED:
            self._fail(unit, flight, stage)
        else:
            unit.unsent.append((flight, send))
        return True

    # --- failures ------------------------------------------------------------------------------------------------------
    def _strike(self, failure: Failure) -> None:
        struck = [each for each in self.units if failure.name == (each.host if failure.is_host else each.name)]
        for unit in struck:
            unit.is_away |= failure.is_host
            if unit.lives:
                self.deaths += 1
                unit.lives = False
                self._carry_out(unit, unit.life.exited(unit.name, _REASON, self.clock.now))
        if failure.is_host:
            self.clock.after(failure.away, partial(self._come_back, struck))

    def _come_back(self, units: Sequence[SimulatedUnit]) -> None:
        for unit in units:
            unit.is_away = False
            if unit.wants_start:
                self._launch(unit)

    def _launch(self, unit: SimulatedUnit) -> None:
        unit.wants_start = unit.is_away
        if unit.is_away:
            return
        unit.lives = True
        unit.starts += 1
        self.start(unit, partial(self._is_ready, unit, unit.starts))

    def _is_ready(self, unit: SimulatedUnit, start: int) -> None:
        if unit.lives and unit.starts == start:
            self._carry_out(unit, unit.life.process_is_ready(unit.name, self.clock.now))

    # --- actions -------------------------------------------------------------------------------------------------------
    def _carry_out(self, unit: SimulatedUnit, actions: Iterable[life.Action]) -> None:
        for action in actions:
            if isinstance(action, life.Kill):
                unit.lives = False
                self.end(unit)
            elif isinstance(action, life.Died):
                settle = partial(self._settle, unit, self._holders(unit), action.reason, unit.life.last_death)
                self.clock.after(_REPORT_SECONDS, settle)
            elif isinstance(action, life.Launch):
                self._launch(unit)
            elif isinstance(action, life.Ready):
                self.build(unit)
                for send in self._take_unsent(unit):
                    send[1]()
            elif isinstance(action, life.Failed):
                for flight, _ in self._take_unsent(unit):
                    self._fail(unit, flight, unit.stages[0].name)
        if unit.life.deadline is not None:
            self.clock.after(max(0.0, unit.life.deadline - self.clock.now), partial(self._tick, unit))

    def _tick(self, unit: SimulatedUnit) -> None:
        if unit.life.deadline is not None and unit.life.deadline <= self.clock.now + 1e-9:
            self._carry_out(unit, unit.life.clock(max(self.clock.now, unit.life.deadline)))

    @staticmethod
    def _take_unsent(unit: SimulatedUnit) -> list[tuple[Flight, Action]]:
        unsent, unit.unsent = unit.unsent, []
        return [(flight, send) for flight, send in unsent if not flight.is_withdrawn]

    def _fail(self, unit: SimulatedUnit, flight: Flight, stage: str) -> None:
        error = ErrorInfo(stage, "StageFailedError", unit.life.reason)
        self.perform(self.machine.failure(flight.name, error, self.clock.now))

    # --- what is lost --------------------------------------------------------------------------------------------------
    def _holders(self, unit: SimulatedUnit) -> list[Flight]:
        return [self.flights[name] for name in self.machine.attempts() if unit.holds(self.flights[name])]

    def _settle(self, unit: SimulatedUnit, held: Sequence[Flight], reason: str, death: float) -> None:
        """Tell the machine which requests the unit held when it ended, by the runtime's own rule."""
        report = DeathReport(set(), [each.name for each in held], self.machine.is_completed)
        for flight in held:
            report.reached.update((flight.name, stage) for stage in flight.reached)
            for (source, target), what in flight.came.items():
                visit = flight.sample[source]
                handed = (
                    [name for name in visit.targets if name != CLIENT],
                    [name for name in visit.chunks if name != CLIENT],
                )
                report.arrived[flight.name, source, target] = (what, [*handed])
        specs = [
            StageSpec(
                name=each.name, next=list(each.next_stages), terminal=each.terminal, stream_to=list(each.stream_to)
            )
            for each in unit.stages
        ]
        lost = report.lost(specs)
        excuse = partial(unit.life.excuse, death)
        self.perform(self.machine.process_lost(lost, reason, self.clock.now, excuse))
        self._carry_out(unit, unit.life.settled(death, self.clock.now))
