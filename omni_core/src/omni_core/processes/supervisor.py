"""Carries out the decisions of a :class:`~omni_core.processes.restarts.Unit`: starts, watches and ends its processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Protocol

from omni_core.config.schema import RestartConfig
from omni_core.errors import OmniError, StartupError, is_interrupt, message_of
from omni_core.processes import actions
from omni_core.processes.actions import Action
from omni_core.processes.process import Launch, SupervisedProcess
from omni_core.processes.restarts import COMPUTE_SECONDS, Unit
from omni_core.protocol.messages import ErrorInfo
from omni_core.protocol.process_messages import RunningCompute
from omni_core.protocol.specs import ProcessSpec, UnitSpec

logger = logging.getLogger(__name__)

CUT_SECONDS = 1.0
"""The time in which the death of a process is told whose connections have ended."""


class Role(Enum):
    """The part of a unit: it is to serve, gets new requests, or only finishes those that it has."""

    JOINING = "joining"
    SERVING = "serving"
    DRAINING = "draining"


class Owner(Protocol):
    """The callbacks of a supervisor."""

    def unit_changed(self, supervisor: Supervisor) -> None:
        """The ``state`` of the unit has changed."""

    def unit_died(self, supervisor: Supervisor, reason: str) -> None:
        """The unit was serving, or about to, and its processes are gone or going. A restart or :meth:`unit_failed` follows once
        :meth:`Supervisor.settled` was called.
        """

    def unit_is_ready(self, supervisor: Supervisor) -> None:
        """All processes of the unit read their sockets; ``unit_is_back`` follows if this is after a restart."""

    def unit_is_back(self, supervisor: Supervisor) -> None:
        """The unit serves again after a restart."""

    def unit_failed(self, supervisor: Supervisor, reason: str) -> None:
        """The unit has died too often: what needs it fails. If it is tried again and serves, :meth:`unit_is_back` follows."""

    def ping(self, process: ProcessSpec) -> None:
        """Ask a process for an answer, which comes back by :meth:`Supervisor.answered`."""


class Places(Protocol):
    """The places of units: :class:`omni_core.machines.placing.Placing`."""

    async def place(self, unit: UnitSpec, number: int) -> tuple[list[ProcessSpec], Launch]:
        """Return the specs for the ``number``-th launch of a unit, and what starts them on the machine that it got.

        Raises:
            StartupError: it has none now.
        """

    def waits_for(self, unit: UnitSpec) -> str:
        """Return what a unit that has no place waits for."""


class Supervisor:
    """Supervises the processes of one :class:`UnitSpec`. All methods are called from the parent's event loop.

    Args:
        places: asked for a machine at each launch.

    Attributes:
        life: decides what is done; its state, restarts and reason are those of the unit.
        role: its part among the replicas of its group.
    """

    def __init__(self, spec: UnitSpec, policy: RestartConfig, owner: Owner, places: Places) -> None:
        self.spec = spec
        self.processes: list[SupervisedProcess] = []
        self.role = Role.SERVING
        timeouts = {each.name: each.compute_timeout or COMPUTE_SECONDS for each in spec.stages}
        names = [process.name for process in spec.processes]
        self.life = Unit(self.label, names, policy, spec.startup_timeout, timeouts)
        self._owner = owner
        self._places = places
        self._placing: asyncio.Task[str | None] | None = None
        self._loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._was_starting = True

    @property
    def label(self) -> str:
        """The name that messages use: the stage's, or the process group's if it holds several stages."""
        return self.spec.stage_names[0] if len(self.spec.stage_names) == 1 else self.spec.name

    def launch(self) -> None:
        """Start every process; :attr:`started` ends when all stages are ready for the first time, or cannot be."""
        self._carry_out(self.life.launch(self._loop.time()))

    def process_is_ready(self, name: str, pid: int) -> None:
        """The process ``pid`` has built its stages. A late message of a predecessor is told by its pid, and ignored."""
        for process in self.processes:
            if process.spec.name != name:
                continue
            if not process.launched.done():  # another machine has not said yet which pid it has
                process.launched.add_done_callback(lambda _: self.process_is_ready(name, pid))
            elif process.pid == pid:
                self._carry_out(self.life.process_is_ready(name, self._loop.time()))

    def start_failed(self, error: ErrorInfo) -> None:
        """A process says why a stage cannot be built; it ends by itself."""
        problem = f"{error.error_type}: {error.message}"
        self._carry_out(self.life.start_failed(error.stage, problem, error.traceback, self._loop.time()))

    def _exited(self, process: SupervisedProcess) -> None:
        if process in self.processes:
            self._carry_out(self.life.exited(process.spec.name, process.reason, self._loop.time()))

    def cut(self, reason: str) -> None:
        """A connection to a process of the unit has ended. Unless it has died, which is told soon, the unit is restarted."""
        if self.life.serves:  # else it led to a predecessor, or has lost nothing
            self._loop.call_later(CUT_SECONDS, self._replace, self.life.restarts, reason)

    def _replace(self, launch: int, reason: str) -> None:
        if self.life.restarts == launch:
            where = self.processes[0].where
            self._carry_out(self.life.cut(f"a connection to its process{where} was cut: {reason}", self._loop.time()))

    def sent_nonsense(self, process: SupervisedProcess, reason: str) -> None:
        """A process of the unit has sent what is no message: something in it writes to descriptors that are not its own."""
        if process.running:
            problem = (
                f"its process (pid {process.pid}{process.where}) has sent {reason}, as if a descriptor was closed twice"
            )
            process.keep(problem)
            self._carry_out(self.life.cut(problem, self._loop.time()))
            process.kill()

    def settled(self, death: float) -> None:
        """Everything that follows from the death at that time is known (see :meth:`Unit.settled`)."""
        self._carry_out(self.life.settled(death, self._loop.time()))

    def beat(self) -> None:
        """Ping every process, and look after those that do not answer. Called from time to time."""
        self._carry_out(self.life.beat(self._loop.time()))

    def request_is_over(self) -> None:
        """A request was aborted or has failed."""
        self.life.request_is_over(self._loop.time())

    def answered(self, name: str, running: Sequence[RunningCompute], in_flight: Mapping[str, object]) -> None:
        """A process of the unit has answered a ping (see :meth:`Unit.answered`)."""
        self._carry_out(self.life.answered(name, running, in_flight, self._loop.time()))

    def _on_timer(self) -> None:
        self._timer = None
        self._carry_out(self.life.clock(self._loop.time()))

    def _carry_out(self, decided: Iterable[Action]) -> None:
        where = {"stage": self.label}
        for action in decided:
            if isinstance(action, actions.Launch):
                self.processes = []
                self._placing = asyncio.ensure_future(self._start_processes())
                self._placing.add_done_callback(self._has_placed)
            elif isinstance(action, actions.Kill):
                if self._placing is not None and not self._placing.done():
                    self._placing.cancel()
                for process in self.processes:
                    process.kill()
            elif isinstance(action, actions.Ping):
                self._owner.ping(next(each.spec for each in self.processes if each.spec.name == action.process))
            elif isinstance(action, actions.Changed):
                self._owner.unit_changed(self)
            elif isinstance(action, actions.Stalled):
                pid = next(each.pid for each in self.processes if each.spec.name == action.process)
                logger.warning("stage %s: process %d does not answer; its requests wait", self.label, pid, extra=where)
            elif isinstance(action, actions.Ready):
                self._owner.unit_is_ready(self)
                if action.again:
                    logger.warning("stage %s: serves again (pid %d)", self.label, self.processes[0].pid, extra=where)
                    self._owner.unit_is_back(self)
            elif isinstance(action, actions.Started):
                self._end_start(action)
            elif isinstance(action, actions.Died):
                log = "".join(each.last_lines for each in self.processes if not each.running) or self.progress(())
                logger.error("stage %s: %s%s", self.label, action.reason, log, extra=where)
                self._owner.unit_died(self, action.reason)
            else:
                pause = action.pause
                then = "it is not restarted" if pause is None else f"it is tried again in {pause:.0f} s"
                what = "stage %s has died %d times in a short while (%s): what needs it fails; %s"
                logger.error(what, self.label, action.deaths, action.reason, then, extra=where)
                self._owner.unit_failed(self, action.reason)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.life.deadline
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_timer)

    async def _start_processes(self) -> str | None:
        """Start every process where there is a place. Returns what hinders that."""
        try:
            specs, launch = await self._places.place(self.spec, self.life.restarts)
            for spec in specs:
                self.processes.append(launch(spec, self._exited))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a launcher is anyone's code
            if is_interrupt(error):
                raise
            return message_of(error, with_type=not issubclass(type(error), OSError | OmniError))
        return None

    def _has_placed(self, placing: asyncio.Task[str | None]) -> None:
        # One that was cancelled may not even have begun, or may have started processes all the same.
        problem = "" if placing.cancelled() or placing.cancelling() else placing.result()
        if problem is not None:
            names = [process.spec.name for process in self.processes]
            self._carry_out([actions.Kill(), *self.life.launch_failed(names, problem, self._loop.time())])

    def _end_start(self, action: actions.Started) -> None:
        if self.started.done():
            return
        if not action.problem:
            self.started.set_result(None)
            return
        self.started.set_exception(StartupError(f"{action.problem}{self.progress(action.late)}"))

    def progress(self, late: Collection[str] | None = None) -> str:
        """Describe the state of the unit's start, for messages: what it waits for, or the last lines of (``late``) processes."""
        if not self.processes and (wanted := self._places.waits_for(self.spec)):
            return f"; it waits for {wanted}"
        log = "".join(each.last_lines for each in self.processes if late is None or each.spec.name in late)
        return log or ("; it has written nothing" if late else "")

    def begin_stop(self) -> None:
        """From now on its processes are meant to end."""
        self._was_starting = not self.life.serves
        self.life.stop()
        self._set_timer()

    async def finish_stop(self, timeout: float) -> None:
        """Wait until every process has ended; kill those that have not within ``timeout`` seconds."""
        if self._placing is not None:
            self._placing.cancel()
        for process in self.processes:
            process.say_stop()
        endings = [process.ended for process in self.processes]
        if endings:
            try:
                # A process that is still building stages reads no message; it has nothing to lose either.
                await asyncio.wait(endings, timeout=0.05 if self._was_starting else timeout)
            finally:
                for process in self.processes:
                    process.kill()
            await asyncio.gather(*endings)
        if not self.started.done():
            self.started.cancel()
