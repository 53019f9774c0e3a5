"""The units of a running pipeline, and what the runner tells them about each other: deaths, returns, failures. Starts no process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from omni_core.control.lanes import Tasks
from omni_core.control.network import Network
from omni_core.control.plane import ControlPlane
from omni_core.coordinator.coordinator import Coordinator
from omni_core.errors import StageFailedError, contained
from omni_core.processes.actions import UnitState
from omni_core.processes.deaths import Deaths
from omni_core.processes.heartbeat import Heartbeat
from omni_core.processes.supervisor import Role, Supervisor
from omni_core.protocol import messages, process_messages
from omni_core.protocol.specs import ProcessSpec

logger = logging.getLogger(__name__)

Progress = Callable[[str, str], None]
"""Called with a stage's name and its state: ``starting``, ``ready``, ``stalled``, ``restarting``, ``failed``."""


class Units(dict[str, Supervisor]):
    """The units by name, and the :class:`~omni_core.processes.supervisor.Owner` of all. Call :meth:`connect` before the first is launched.

    Args:
        on_progress: called as the state of a stage changes.
        address: the address of an endpoint, as the process at the second one (``None``: the runner) reaches it.
        on_other: takes the messages that are not handled here.
    """

    control: ControlPlane
    coordinator: Coordinator
    heartbeat: Heartbeat
    _deaths: Deaths

    def __init__(
        self, on_progress: Progress, address: Callable[[str, str | None], str], on_other: Callable[[Any], None]
    ) -> None:
        super().__init__()
        self._on_progress = on_progress
        self._address = address
        self._on_other = on_other
        self._tasks = Tasks()
        self._stopping = False

    def connect(
        self, run: str, address: str, network: Network | None, make_coordinator: Callable[[], Coordinator]
    ) -> None:
        """Make what the processes of a run talk to: its endpoint ``run`` at an address, and its coordinator, which may use the former."""
        self.control = ControlPlane(
            run, self.handle, {run: address}, network, self._on_cut, self._keep_in_flight, self._on_nonsense
        )
        self.control.listen()
        self.heartbeat = Heartbeat(self, lambda: self.coordinator.in_flight > 0)
        self.coordinator = make_coordinator()
        self._deaths = Deaths(self.coordinator, self.control)

    def close(self) -> None:
        """Watch no more, and tell nothing more. Idempotent."""
        self._stopping = True
        if hasattr(self, "heartbeat"):
            self.heartbeat.close()
        for task in self._tasks:
            task.cancel()

    def available_replicas(self, group: str) -> dict[int, int]:
        """The replicas of a process group that serve, else those that will, else those that have failed, by slot."""
        units = [unit for unit in self.values() if unit.spec.group == group and unit.role is Role.SERVING]
        chosen = [unit for unit in units if unit.life.state is UnitState.READY] or [
            unit for unit in units if unit.life.state is not UnitState.FAILED
        ]
        return {unit.spec.slot: unit.spec.replica for unit in chosen or units}

    def _unit_of(self, process: str) -> Supervisor | None:
        """The unit of a process; ``None`` if it has ended for good."""
        return next((unit for unit in self.values() if any(each.name == process for each in unit.spec.processes)), None)

    def handle(self, message: Any) -> None:
        """Take a message that was sent to the runner."""
        if isinstance(message, messages.CompleteMessage | messages.StreamMessage):
            self.coordinator.handle(message)
        elif isinstance(message, messages.InputTaken):
            self.coordinator.input_taken(message)
        elif isinstance(message, messages.StageSpan):
            self.coordinator.stage_span(message)
        elif isinstance(message, messages.WaitingReport):
            self.coordinator.answered(message)
        elif isinstance(message, process_messages.PongMessage):
            if unit := self._unit_of(message.process):
                in_flight = self.coordinator.attempts() if message.running else {}
                unit.answered(message.process, message.running, in_flight)
        elif isinstance(message, process_messages.PeerCutReport):
            # A process that was lost, and wakes up, has lost all its connections.
            if self.process_ids.get(message.process) == message.pid:
                self._on_cut(message.endpoint, message.reason)
        elif isinstance(message, process_messages.NonsenseReport):
            self._on_nonsense(message.pid, message.reason, message.process)
        elif isinstance(message, process_messages.PeerDownReport):
            self._deaths.take(message)
        elif isinstance(message, process_messages.InFlightRequest):
            self.control.tell(message.endpoint, process_messages.InFlightReport(list(self.coordinator.attempts())))
        elif isinstance(message, process_messages.ReadyMessage):
            if unit := self._unit_of(message.process):
                unit.process_is_ready(message.process, message.pid)
        elif isinstance(message, process_messages.ProcessFailedMessage):
            if unit := self._unit_of(message.process):
                unit.start_failed(message.error)
        else:
            self._on_other(message)

    def _keep_in_flight(self) -> None:
        self.control.keep(self.coordinator.attempts())

    def _on_cut(self, endpoint: str, reason: str) -> None:
        """A connection to a process on another machine has ended."""
        for unit in self.values():
            if any(process.endpoint == endpoint for process in unit.spec.processes):
                unit.cut(reason)

    def _on_nonsense(self, pid: int, reason: str, to: str = "") -> None:
        """A process has sent what is no message: to us, or to a process ``to`` on its machine."""
        logger.error("process %d has sent %s; its connection to %s is closed", pid, reason, to or "the runner")
        processes = [(unit, process) for unit in self.values() for process in unit.processes]
        where = next((process.where for _, process in processes if process.spec.name == to), "")
        for unit, process in processes:
            if (process.pid, process.where) == (pid, where):
                unit.sent_nonsense(process, reason)

    def broadcast(self, message: Any) -> int:
        """Send a message to every process that serves or will; their number."""
        if self._stopping:
            return 0
        told = [unit for unit in self.values() if unit.life.state is not UnitState.FAILED]
        for unit in told:
            self.control.tell(unit.spec.endpoint, message)
        request_id = getattr(message, "request_id", None)
        if request_id is not None:
            self.control.forget(request_id)
            self.heartbeat.request_is_over()
        return len(told)

    def unit_changed(self, unit: Supervisor) -> None:
        for name in unit.spec.stage_names if unit.role is Role.SERVING else ():
            contained(partial(self._on_progress, name, unit.life.state.value), None, "on_progress")

    def unit_died(self, unit: Supervisor, reason: str) -> None:
        self._deaths.survivor_died(unit.spec)
        self._tasks.start(self._deaths.settle(unit, self._serving_but(unit), reason))

    def unit_is_ready(self, unit: Supervisor) -> None:
        # Something may wait for it even at its first start: the failure of another unit.
        for process in unit.spec.processes:
            self.control.peer_is_up(process.endpoint, self._address(process.endpoint, None))
        # Rank 0 may have begun before the others read their sockets; what it has for them waits until then.
        for follower in unit.spec.processes[1:]:
            self._introduce(follower.endpoint, unit.spec.endpoint)
        for other in self._serving_but(unit):
            # It may have become ready while this one started, and then has been announced to all but this one.
            self._introduce(unit.spec.endpoint, other.spec.endpoint)

    def _introduce(self, *endpoints: str) -> None:
        """Tell each of two processes that the other one reads its endpoint, and where."""
        for endpoint, other in (endpoints, endpoints[::-1]):
            self.control.tell(other, process_messages.PeerUpMessage(endpoint, self._address(endpoint, other)))

    def unit_is_back(self, unit: Supervisor) -> None:
        for other in self.values():
            if other.life.state is UnitState.FAILED:
                self.control.tell(unit.spec.endpoint, self._failure_of(other))

    def unit_failed(self, unit: Supervisor, reason: str) -> None:
        message = self._failure_of(unit)
        for other in self.values():
            if other is not unit and other.life.state is not UnitState.FAILED:
                self.control.tell(other.spec.endpoint, message)
        error = StageFailedError(unit.spec.stage_names[0], reason)
        for attempt, stage in self.control.peer_has_failed(unit.spec.endpoint, error):
            self.coordinator.fail(attempt, messages.ErrorInfo(stage, type(error).__name__, str(error)))

    def ping(self, process: ProcessSpec) -> None:
        self.control.tell(process.endpoint, process_messages.PingMessage())

    def _failure_of(self, unit: Supervisor) -> process_messages.PeerFailedMessage:
        return process_messages.PeerFailedMessage(unit.spec.endpoint, unit.spec.stage_names, unit.life.reason)

    def _serving_but(self, unit: Supervisor) -> list[Supervisor]:
        return [other for other in self.values() if other is not unit and other.life.serves]

    @property
    def process_ids(self) -> dict[str, int]:
        """The pid of every process by its name."""
        return {process.spec.name: process.pid for unit in self.values() for process in unit.processes}
