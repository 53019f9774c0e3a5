"""Carries out the decisions of a :class:`~omni_core.processes.unit.Unit`: starts, watches and ends its processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from omni_core.config.schema import RestartConfig
from omni_core.errors import StartupError
from omni_core.processes import unit
from omni_core.processes.process import Launch, SupervisedProcess
from omni_core.processes.unit import Action, Unit
from omni_core.protocol.messages import ErrorInfo, RunningCompute
from omni_core.protocol.specs import ProcessSpec, UnitSpec
from omni_core.stage.ranks import with_rendezvous

logger = logging.getLogger(__name__)


class Owner(Protocol):
    """The callbacks of a supervisor."""

    def unit_changed(self, supervisor: Supervisor) -> None:
        """The ``state`` of the unit has changed."""

    def unit_died(self, supervisor: Supervisor, reason: str) -> None:
        """The unit was serving, or about to, and its processes are gone or going. A restart or :meth:`unit_failed` follows."""

    def unit_is_ready(self, supervisor: Supervisor) -> None:
        """All processes of the unit read their sockets; ``unit_is_back`` follows if this is after a restart."""

    def unit_is_back(self, supervisor: Supervisor) -> None:
        """The unit serves again after a restart."""

    def unit_failed(self, supervisor: Supervisor, reason: str) -> None:
        """The unit will not be restarted any more."""

    def ping(self, process: ProcessSpec) -> None:
        """Ask a process for an answer, which comes back by :meth:`Supervisor.answered`."""


class Supervisor:
    """Supervises the processes of one :class:`UnitSpec`. All methods are called from the parent's event loop.

    Args:
        launch: starts a process on the unit's machine.

    Attributes:
        life: decides what is done; its state, restarts and reason are those of the unit.
    """

    def __init__(self, spec: UnitSpec, policy: RestartConfig, owner: Owner, launch: Launch) -> None:
        self.spec = spec
        self.processes: list[SupervisedProcess] = []
        timeouts = {each.name: each.compute_timeout or unit.COMPUTE_SECONDS for each in spec.stages}
        names = [process.name for process in spec.processes]
        self.life = Unit(self.label, names, policy, spec.startup_timeout, timeouts)
        self._owner = owner
        self._launch = launch
        self._loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._was_starting = True

    @property
    def label(self) -> str:
        """The name that messages use: the stage's, or the process group's if it holds several stages."""
        return self.spec.stage_names[0] if len(self.spec.stage_names) == 1 else self.spec.name

    # --- events --------------------------------------------------------------------------------------------------------
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

    # --- actions -------------------------------------------------------------------------------------------------------
    def _carry_out(self, actions: Iterable[Action]) -> None:
        where = {"stage": self.label}
        for action in actions:
            if isinstance(action, unit.Launch):
                self._start_processes()
            elif isinstance(action, unit.Kill):
                for process in self.processes:
                    process.kill()
            elif isinstance(action, unit.Ping):
                self._owner.ping(next(each.spec for each in self.processes if each.spec.name == action.process))
            elif isinstance(action, unit.Changed):
                self._owner.unit_changed(self)
            elif isinstance(action, unit.Stalled):
                pid = next(each.pid for each in self.processes if each.spec.name == action.process)
                logger.warning("stage %s: process %d does not answer; its requests wait", self.label, pid, extra=where)
            elif isinstance(action, unit.Ready):
                self._owner.unit_is_ready(self)
                if action.again:
                    logger.warning("stage %s: serves again (pid %d)", self.label, self.processes[0].pid, extra=where)
                    self._owner.unit_is_back(self)
            elif isinstance(action, unit.Started):
                self._end_start(action)
            elif isinstance(action, unit.Died):
                log = "".join(process.last_lines for process in self.processes if not process.running)
                logger.error("stage %s: %s%s", self.label, action.reason, log, extra=where)
                self._owner.unit_died(self, action.reason)
            else:
                logger.error(
                    "stage %s has died %d times in a short while: given up", self.label, action.deaths, extra=where
                )
                self._owner.unit_failed(self, action.reason)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.life.deadline
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_timer)

    def _start_processes(self) -> None:
        self.processes = []
        try:
            for spec in with_rendezvous(self.spec.processes, self.life.restarts):
                self.processes.append(self._launch(spec, self._exited))
        except OSError as error:
            names = [process.spec.name for process in self.processes]
            self._carry_out(self.life.launch_failed(names, str(error), self._loop.time()))

    def _end_start(self, action: unit.Started) -> None:
        if self.started.done():
            return
        if not action.problem:
            self.started.set_result(None)
            return
        log = "".join(process.last_lines for process in self.processes if process.spec.name in action.late)
        if action.late and not log:
            log = "; it has written nothing"
        self.started.set_exception(StartupError(f"{action.problem}{log}"))

    # --- stop ----------------------------------------------------------------------------------------------------------
    def begin_stop(self) -> None:
        """From now on its processes are meant to end."""
        self._was_starting = not self.life.serves
        self.life.stop()
        self._set_timer()

    async def finish_stop(self, timeout: float) -> None:
        """Wait until every process has ended; kill those that have not within ``timeout`` seconds."""
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
