"""The life of one unit: launched, ready, stalled, dead, restarted with a bounded back-off, at last declared failed.

A unit is what starts and dies together: one process, or the ranks of a tensor parallel stage. A process that is stopped or too
busy to answer is *stalled*: that is reported, and nothing else is done about it, because it may go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from enum import Enum
from typing import Protocol

from omni_core.config.schema import RestartConfig
from omni_core.errors import StartupError
from omni_core.processes.process import Launch, SupervisedProcess
from omni_core.protocol.messages import ErrorInfo
from omni_core.protocol.specs import UnitSpec
from omni_core.stage.ranks import with_rendezvous

logger = logging.getLogger(__name__)


_LAST_MESSAGE_SECONDS = 0.05


class UnitState(Enum):
    """Where a unit is in its life."""

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


class Owner(Protocol):
    """Who is told about a unit."""

    def unit_changed(self, unit: Unit) -> None:
        """Its ``state`` has changed."""

    def unit_died(self, unit: Unit, reason: str) -> None:
        """It was serving, or about to, and its processes are gone or going. A restart or :meth:`unit_failed` follows."""

    def unit_is_ready(self, unit: Unit) -> None:
        """All its processes read their sockets: for the first time, or after a restart, when :meth:`unit_is_back` follows."""

    def unit_is_back(self, unit: Unit) -> None:
        """It serves again after a restart."""

    def unit_failed(self, unit: Unit, reason: str) -> None:
        """It will not be restarted any more."""


class Unit:
    """Supervises the processes of one :class:`UnitSpec`. All methods are called from the parent's event loop.

    Args:
        launch: starts a process where the unit's host is.
    """

    def __init__(self, spec: UnitSpec, policy: RestartConfig, owner: Owner, launch: Launch) -> None:
        self.spec = spec
        self.state = UnitState.STARTING
        self.processes: list[SupervisedProcess] = []
        self.restarts = 0
        self.reason = ""
        self._policy = policy
        self._owner = owner
        self._launch = launch
        self._loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self._loop.create_future()
        self._deaths: deque[float] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._launched = False  # whether its processes are meant to live
        self._was_starting = True

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def label(self) -> str:
        """How messages call it: by its stage, or by its process group's name if that holds several."""
        return self.spec.stage_names[0] if len(self.spec.stage_names) == 1 else self.spec.name

    @property
    def serves(self) -> bool:
        return self.state in (UnitState.READY, UnitState.STALLED)

    # --- start ---------------------------------------------------------------------------------------------------------
    def launch(self) -> None:
        """Start every process; :attr:`started` ends when all stages are ready for the first time, or cannot be."""
        self._timer = None
        self._launched = True
        self.processes = []
        try:
            for spec in with_rendezvous(self.spec.processes):
                self.processes.append(self._launch(spec, self._exited))
        except OSError as error:
            self._down(f"its process could not be started: {error}")
            return
        self._timer = self._loop.call_later(self.spec.startup_timeout, self._too_late)

    def process_is_ready(self, name: str) -> None:
        """A process says that its stages are built."""
        for process in self.processes:
            if process.spec.name == name:
                process.is_ready = True
        if not all(process.is_ready and process.running for process in self.processes):
            return
        if self._timer is not None:
            self._timer.cancel()
        first = not self.started.done()
        self._enter(UnitState.READY)
        self._owner.unit_is_ready(self)
        if first:
            self.started.set_result(None)
        else:
            logger.warning("stage %s: serves again (pid %d)", self.label, self.processes[0].pid)
            self._owner.unit_is_back(self)

    def start_failed(self, error: ErrorInfo) -> None:
        """A process says why a stage cannot be built; it ends by itself."""
        if self.state not in (UnitState.STARTING, UnitState.RESTARTING):
            return
        text = f"stage {error.stage!r} could not be started: {error.error_type}: {error.message}"
        self._down(f"{error.error_type}: {error.message}", StartupError(f"{text}\n{error.traceback}".rstrip()))

    def _too_late(self) -> None:
        late = [process for process in self.processes if not process.is_ready]
        log = "".join(process.last_lines for process in late)
        reason = f"not ready within its startup_timeout of {self.spec.startup_timeout:g} s"
        self._down(reason, StartupError(f"stage {self.label!r}: {reason}{log or '; it has written nothing'}"))

    # --- death ---------------------------------------------------------------------------------------------------------
    def _exited(self, process: SupervisedProcess) -> None:
        if self._launched and not process.is_ready:
            # It may have said why, in a message that is read a moment later.
            self._loop.call_later(_LAST_MESSAGE_SECONDS, self._gone, process)
        else:
            self._gone(process)

    def _gone(self, process: SupervisedProcess) -> None:
        if not self._launched:
            self._relaunch_when_gone()
        elif process in self.processes:
            where = f" (rank process {process.spec.name!r})" if len(self.processes) > 1 else ""
            error = StartupError(
                f"stage {self.label!r} could not be started: {process.reason}{where}{process.last_lines}"
            )
            self._down(f"{process.reason}{where}", error, process.last_lines)

    def _down(self, reason: str, error: StartupError | None = None, log: str = "") -> None:
        if not self._launched:
            return
        self._launched = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        first = not self.started.done()
        self.reason = reason
        for process in self.processes:
            process.kill()
        if first:
            self._enter(UnitState.FAILED)
            self.started.set_exception(error or StartupError(f"stage {self.label!r} could not be started: {reason}"))
            return
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - self._policy.window:
            self._deaths.popleft()
        gives_up = len(self._deaths) > self._policy.limit
        logger.error("stage %s: %s%s", self.label, reason, log)
        self._enter(UnitState.FAILED if gives_up else UnitState.RESTARTING)
        # Also if it was not ready yet: that it was may lie unread here, and others may have written to it.
        self._owner.unit_died(self, reason)
        if gives_up:
            logger.error(
                "stage %s has died %d times in %g s: given up", self.label, len(self._deaths), self._policy.window
            )
            self._owner.unit_failed(self, reason)
        else:
            self._relaunch_when_gone()

    def _relaunch_when_gone(self) -> None:
        if self.state is not UnitState.RESTARTING or self._timer is not None:
            return
        if not any(process.running for process in self.processes):
            before = len(self._deaths) - 1
            pause = min(self._policy.backoff * 2 ** (before - 1), self._policy.backoff_limit) if before > 0 else 0.0
            self._timer = self._loop.call_later(pause, self._relaunch)

    def _relaunch(self) -> None:
        self.restarts += 1
        self.launch()

    # --- stalls --------------------------------------------------------------------------------------------------------
    def look(self, now: float, patience: float) -> None:
        """Called from time to time: has every process answered within ``patience`` seconds?"""
        late = [p for p in self.processes if p.unanswered_since is not None and now - p.unanswered_since >= patience]
        if late and self.state is UnitState.READY:
            logger.warning(
                "stage %s: process %d has not answered for %.0f s (stopped, or busy); its requests wait",
                self.label,
                late[0].pid,
                patience,
            )
            self._enter(UnitState.STALLED)

    def answered(self, name: str) -> None:
        """A process of the unit turns."""
        for process in self.processes:
            if process.spec.name == name:
                process.unanswered_since = None
        if self.state is UnitState.STALLED and all(p.unanswered_since is None for p in self.processes):
            logger.warning("stage %s: answers again", self.label)
            self._enter(UnitState.READY)

    # --- stop ----------------------------------------------------------------------------------------------------------
    def begin_stop(self) -> None:
        """From now on its processes are meant to end."""
        self._was_starting = not self.serves
        self._launched = False
        self.state = UnitState.STOPPED
        if self._timer is not None:
            self._timer.cancel()

    async def finish_stop(self, timeout: float) -> None:
        """Wait until every process has ended; kill those that have not within ``timeout`` seconds."""
        for process in self.processes:
            process.say_stop()
        endings = [process.ended for process in self.processes]
        if endings:
            # A process that is still building stages reads no message; it has nothing to lose either.
            await asyncio.wait(endings, timeout=0.05 if self._was_starting else timeout)
            for process in self.processes:
                process.kill()
            await asyncio.gather(*endings)
        if not self.started.done():
            self.started.cancel()

    def _enter(self, state: UnitState) -> None:
        if state is not self.state:
            self.state = state
            self._owner.unit_changed(self)
