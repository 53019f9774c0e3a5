"""The requests that die with a process: those of which it held something, and no others.

The surviving processes report what they had written to the process and what had arrived from it. A request is safe if, for each stage
of the process, nothing of it had reached that stage, or everything that the stage had to hand on has arrived. Where
this cannot be told, it counts as lost: an error is better than silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import count
from typing import Any

from attrs import define, field, frozen

from omni_core.control.plane import ControlPlane
from omni_core.coordinator.coordinator import Coordinator
from omni_core.processes.supervisor import Supervisor
from omni_core.protocol.messages import OmniRequest, PeerDownMessage, PeerDownReport
from omni_core.protocol.specs import StageSpec, UnitSpec
from omni_core.stage.requests import DONE, PAYLOAD

logger = logging.getLogger(__name__)

REPORT_SECONDS = 0.5
"""The time that survivors have to report what they know about a dead process."""

_READ_ON_SECONDS = 0.02
"""Without survivors: the time to read what the process had sent before its death."""


@frozen
class LossReport:
    """The knowledge about some requests at the death of a process.

    Attributes:
        reached: ``(request, stage)`` of which something was written to the process.
        arrived: ``(request, stage of the process, receiving stage)`` to what has come there (see ``stage.Arrivals``).
        completed: ``(request, terminal stage)`` whose result the coordinator has.
        complete: True if every survivor has answered.
    """

    reached: set[tuple[str, str]] = field(factory=set)
    arrived: dict[tuple[str, str, str], tuple[int, object]] = field(factory=dict)
    completed: set[tuple[str, str]] = field(factory=set)
    complete: bool = True


@define
class DeathReport:
    """Collects the survivors' answers about one dead unit.

    Attributes:
        asked: the processes that are asked. requests: those of which the unit may have held something.
        reached: what the parent itself had written to the unit.
    """

    asked: set[str]
    requests: list[str]
    reached: set[tuple[str, str]]
    _answered: set[str] = field(factory=set)
    _dead: set[str] = field(factory=set)
    _arrived: dict[tuple[str, str, str], tuple[int, object]] = field(factory=dict)

    @property
    def missing(self) -> set[str]:
        """The processes that may still answer."""
        return self.asked - self._answered - self._dead

    def take(self, report: PeerDownReport) -> None:
        """Add the answer of a survivor."""
        self._answered.add(report.process)
        self.reached.update((request, stage) for request, stage in report.reached)
        for request, source, here, seen, handed_to in report.arrived:
            self._arrived[request, source, here] = (seen, handed_to)

    def drop(self, process: str) -> None:
        """A process that was asked has died as well."""
        self._dead.add(process)

    def losses(self, stages: Sequence[StageSpec], completed: Callable[[str, str], bool]) -> dict[str, str]:
        """The lost requests, each with a stage of the unit (of ``stages``) that held it.

        ``completed`` tells if the coordinator has the result of a request's terminal stage.
        """
        done = {(each, stage.name) for each in self.requests for stage in stages if completed(each, stage.name)}
        report = LossReport(self.reached, self._arrived, done, complete=self.asked <= self._answered)
        return lost_requests(self.requests, stages, report)


class Deaths:
    """Asks the survivors of each death, and tells the coordinator what is lost.

    Args:
        tell: sends a message to an endpoint.
    """

    def __init__(self, coordinator: Coordinator, control: ControlPlane, tell: Callable[[str, Any], None]) -> None:
        self._coordinator = coordinator
        self._control = control
        self._tell = tell
        self._numbers = count(1)
        self._open: dict[int, tuple[DeathReport, asyncio.Event]] = {}

    def take(self, report: PeerDownReport) -> None:
        """A survivor has answered."""
        opened = self._open.get(report.death)
        if opened is not None:
            opened[0].take(report)
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
        reached = {work for process in unit.processes for work in self._control.peer_is_down(process.endpoint)}
        requests = [name for name, request in self._coordinator.attempts().items() if concerns(request, unit)]
        report = DeathReport({other.spec.processes[0].name for other in survivors}, requests, reached)
        number, is_complete = next(self._numbers), asyncio.Event()
        self._open[number] = report, is_complete
        for other in survivors:
            self._tell(other.spec.endpoint, PeerDownMessage(number, unit.endpoint, unit.stage_names, requests))
        return self._settle(number, dead, reason)

    async def _settle(self, number: int, dead: Supervisor, reason: str) -> None:
        report, is_complete = self._open[number]
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await (is_complete.wait() if report.asked else asyncio.sleep(_READ_ON_SECONDS))
        except TimeoutError:
            logger.warning("no answer about the death of %s from %s", dead.label, ", ".join(sorted(report.missing)))
        finally:
            del self._open[number]
        self._coordinator.process_lost(report.losses(dead.spec.stages, self._coordinator.completed), reason)


def concerns(request: OmniRequest, unit: UnitSpec) -> bool:
    """Return whether a request that was placed on replicas may have something in this one."""
    return all(request.placement.get(name, unit.replica) == unit.replica for name in unit.stage_names)


def lost_requests(requests: Iterable[str], stages: Sequence[StageSpec], report: LossReport) -> dict[str, str]:
    """Return those of ``requests`` that the process of ``stages`` (in pipeline order) held, each with a stage that held it."""
    lost = {}
    for request in requests:
        holder = _holder(request, stages, report)
        if holder is not None:
            lost[request] = holder
    return lost


def _holder(request: str, stages: Sequence[StageSpec], report: LossReport) -> str | None:
    local = {stage.name for stage in stages}
    reached: set[str] = set()
    for stage in stages:
        if not report.complete or (request, stage.name) in report.reached:
            reached.add(stage.name)
        if stage.name in reached:
            targets = _handed_to(request, stage, report)
            reached.update(name for names in targets for name in names if name in local)
            if not _passed_on(request, stage, targets, local, report):
                return stage.name
    return None


def _handed_to(request: str, stage: StageSpec, report: LossReport) -> tuple[Sequence[str], Sequence[str]]:
    """The stages that get the result of ``stage`` and those whose stream ends, as far as it is known."""
    for target in {*stage.next, *stage.stream_to}:
        _, chosen = report.arrived.get((request, stage.name, target), (0, None))
        if isinstance(chosen, list):
            return chosen[0], chosen[1]
    return stage.next, stage.stream_to


def _passed_on(
    request: str, stage: StageSpec, targets: tuple[Sequence[str], Sequence[str]], local: set[str], report: LossReport
) -> bool:
    if stage.terminal:
        return (request, stage.name) in report.completed
    wanted = [(name, PAYLOAD) for name in targets[0]] + [(name, DONE) for name in targets[1]]
    for name, bit in wanted:
        if name in local:
            continue  # a stage of the same process, checked by itself
        seen, _ = report.arrived.get((request, stage.name, name), (0, None))
        if not seen & bit:
            return False
    return True
