"""The requests that die with a process: those of which it held something, and no others.

The surviving processes report what they had written to the process and what had arrived from it. A request is safe if, for each stage
of the process, nothing of it had reached that stage, or everything that the stage had to hand on has arrived. Where
this cannot be told, it counts as lost: an error is better than silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Any

from attrs import define, field

from omni_core.control.framing import Work
from omni_core.control.plane import ControlPlane
from omni_core.coordinator.coordinator import Coordinator
from omni_core.processes.supervisor import Supervisor
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.process_messages import PeerDownMessage, PeerDownReport
from omni_core.protocol.specs import StageSpec, UnitSpec
from omni_core.stage.active_requests import DONE, PAYLOAD

logger = logging.getLogger(__name__)

REPORT_SECONDS = 0.5
"""The time that survivors have to report what they know about a dead process."""

_READ_ON_SECONDS = 0.02
"""Without survivors: the time to read what the process had sent before its death."""


@define
class DeathReport:
    """The knowledge about the requests of one dead unit: what the parent knows, and the survivors' answers.

    Attributes:
        asked: the processes that are asked.
        requests: those of which the unit may have held something.
        completed: tells if the coordinator has the result of a request's terminal stage.
        reached: ``(request, stage)`` of which something was written to the unit.
        arrived: ``(request, stage of the unit, receiving stage)`` to what has come there (see ``stage.Arrivals``).
    """

    asked: set[str]
    requests: Sequence[str]
    completed: Callable[[str, str], bool]
    reached: set[tuple[str, str]] = field(factory=set)
    arrived: dict[tuple[str, str, str], tuple[int, object]] = field(factory=dict)
    _answered: set[str] = field(factory=set)
    _dead: set[str] = field(factory=set)

    @property
    def missing(self) -> set[str]:
        """The processes that may still answer."""
        return self.asked - self._answered - self._dead

    def take(self, report: PeerDownReport) -> None:
        """Add the answer of a survivor."""
        self._answered.add(report.process)
        self.reached.update((request, stage) for request, stage in report.reached)
        for request, source, here, seen, handed_to in report.arrived:
            self.arrived[request, source, here] = (seen, handed_to)

    def drop(self, process: str) -> None:
        """A process that was asked has died as well."""
        self._dead.add(process)

    def lost(self, stages: Sequence[StageSpec]) -> dict[str, str]:
        """The lost requests, each with a stage that held it, of the ``stages`` of the unit in pipeline order."""
        holders = {request: self._holder(request, stages) for request in self.requests}
        return {request: holder for request, holder in holders.items() if holder is not None}

    def _holder(self, request: str, stages: Sequence[StageSpec]) -> str | None:
        local = {stage.name for stage in stages}
        reached: set[str] = set()
        for stage in stages:
            if self.asked - self._answered or (request, stage.name) in self.reached:
                reached.add(stage.name)
            if stage.name in reached:
                results, streams = self._handed_to(request, stage)
                reached |= local.intersection((*results, *streams))
                # Stages of the same unit are checked by themselves. That a terminal stage streams nothing this time, nobody can tell.
                streams = [] if stage.terminal and stage.stream_done_to_fn else streams
                wanted = [(name, PAYLOAD) for name in results] + [(name, DONE) for name in streams]
                outside = [self._arrival(request, stage, name)[0] & bit for name, bit in wanted if name not in local]
                if not all(outside) or (stage.terminal and not self.completed(request, stage.name)):
                    return stage.name
        return None

    def _handed_to(self, request: str, stage: StageSpec) -> tuple[Sequence[str], Sequence[str]]:
        """The stages that get the result of ``stage`` and those whose stream ends, as far as it is known."""
        for target in {*stage.next, *stage.stream_to}:
            _, chosen = self._arrival(request, stage, target)
            if isinstance(chosen, list):
                return chosen[0], chosen[1]
        return stage.next, stage.stream_to

    def _arrival(self, request: str, stage: StageSpec, target: str) -> tuple[int, object]:
        return self.arrived.get((request, stage.name, target), (0, None))


class Deaths:
    """Asks the survivors of each death, and tells the coordinator what is lost."""

    def __init__(self, coordinator: Coordinator, control: ControlPlane) -> None:
        self._coordinator = coordinator
        self._control = control
        self._numbers = count(1)
        self._open: dict[int, tuple[DeathReport, asyncio.Event]] = {}
        self._arrived: set[Work] = set()
        """The work that came from processes which have died since: nobody else knows that it reached the one that has it."""

    def take(self, report: PeerDownReport) -> None:
        """A survivor has answered."""
        opened = self._open.get(report.death)
        if opened is not None:
            opened[0].take(report)
            self._arrived.update((request, here) for request, _, here, *_ in report.arrived)
            self._check(*opened)

    def survivor_died(self, unit: UnitSpec) -> None:
        """A unit that may have been asked about others has died itself."""
        for opened in self._open.values():
            for process in unit.processes:
                opened[0].drop(process.name)
            self._check(*opened)

    @staticmethod
    def _check(report: DeathReport, is_complete: asyncio.Event) -> None:
        if not report.missing:
            is_complete.set()

    def settle(self, dead: Supervisor, survivors: Sequence[Supervisor], reason: str) -> Coroutine[Any, Any, None]:
        """Fail or run again what the dead unit held, and nothing else.

        The survivors are asked at once, so that one that dies before the result is awaited is not waited for.
        """
        unit = dead.spec
        in_flight = self._coordinator.attempts()
        self._arrived = {work for work in self._arrived if work[0] in in_flight}
        reached = {work for process in unit.processes for work in self._control.peer_is_down(process.endpoint)}
        reached |= self._arrived
        requests = [name for name, request in in_flight.items() if concerns(request, unit)]
        asked = {other.spec.processes[0].name for other in survivors}
        report = DeathReport(asked, requests, self._coordinator.completed, reached)
        death = dead.life.last_death
        number, is_complete = next(self._numbers), asyncio.Event()
        self._open[number] = report, is_complete
        for other in survivors:
            self._control.tell(other.spec.endpoint, PeerDownMessage(number, unit.endpoint, unit.stage_names, requests))
        return self._settle(number, dead, reason, death)

    async def _settle(self, number: int, dead: Supervisor, reason: str, death: float) -> None:
        report, is_complete = self._open[number]
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await (is_complete.wait() if report.asked else asyncio.sleep(_READ_ON_SECONDS))
        except TimeoutError:
            logger.warning("no answer about the death of %s from %s", dead.label, ", ".join(sorted(report.missing)))
        finally:
            del self._open[number]
        try:
            self._coordinator.process_lost(report.lost(dead.spec.stages), reason, partial(dead.life.excuse, death))
        finally:
            dead.settled(death)


def concerns(request: OmniRequest, unit: UnitSpec) -> bool:
    """Return whether a request may have something in this unit; one that was not placed is the first replica's."""
    return all(request.placement.get(name, 0) == unit.replica for name in unit.stage_names)
