"""Restarts: the life of one unit as a state machine without IO, events and the time in, actions out.

A unit is what starts and dies together: one process, or the ranks of a tensor parallel stage. It is launched, becomes ready, may
stall, dies, is restarted with a bounded back-off, and is at last declared failed. :mod:`omni_core.processes.supervisor` carries out
the actions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from attrs import define, field, frozen

from omni_core.config.schema import RestartConfig
from omni_core.processes.actions import (
    Action,
    Changed,
    Died,
    Failed,
    Kill,
    Launch,
    Ping,
    Ready,
    Stalled,
    Started,
    UnitState,
)
from omni_core.protocol.process_messages import RunningCompute

LAST_MESSAGE_SECONDS = 0.05
"""A process that ends before it is ready may have said why, in a message that is read up to this much later."""

STALL_SECONDS = 3.0
"""A process that has left a ping unanswered for so long is stalled."""

COMPUTE_SECONDS = 600.0
"""The ``compute_timeout`` of stage functions that set none, and the longest stall."""

LONGEST_PAUSE_SECONDS = 600.0
"""The longest time for which a failed unit is not tried again, or the window of its policy if that is longer."""

ABORT_GRACE_SECONDS = 30.0
"""The time that the compute of an aborted request has to end, or the stage's ``compute_timeout`` if that is shorter."""


@define
class _Process:
    """One process of the unit since its last launch."""

    is_running: bool = True
    is_ready: bool = False
    pinged: float | None = None
    """The time of the ping that it has not answered."""
    answered: float = -math.inf
    """The time of the last ping that it has answered."""
    computes: bool = False
    """True if its last answer named a running compute."""


@frozen
class _Exit:
    """The end of a process during a start: treated as a death when ``due``, unless a message has told the cause by then."""

    due: float
    reason: str


@define
class Unit:
    """Decides over the processes of a unit. Every event takes the time in seconds and returns the actions to carry out, in order.

    Call :meth:`clock` when :attr:`deadline` has come.

    Args:
        label: the name that messages use: the stage's, or the process group's if it holds several stages.
        names: the processes, the leader first.
        compute_timeouts: by stage, the limit of one compute in seconds.
    """

    label: str
    names: Sequence[str]
    policy: RestartConfig
    startup_timeout: float
    compute_timeouts: Mapping[str, float] = field(factory=dict)
    state: UnitState = UnitState.STARTING
    restarts: int = 0
    reason: str = ""
    _processes: dict[str, _Process] = field(init=False, factory=dict)
    _is_launched: bool = field(init=False, default=False)  # its processes are meant to live
    _has_started: bool = field(init=False, default=False)
    _start_by: float | None = field(init=False, default=None)
    _restart_at: float | None = field(init=False, default=None)
    _exits: list[_Exit] = field(init=False, factory=list)
    _deaths: deque[float] = field(init=False, factory=deque)
    _excused: set[float] = field(init=False, factory=set)
    _unsettled: set[float] = field(init=False, factory=set)
    """The times of deaths whose consequences are not all told yet (see :meth:`settled`)."""
    _is_beyond_limit: bool = field(init=False, default=False)
    """True after a death that is one too many, until it is settled."""
    _trials: int | None = field(init=False, default=None)
    """Of a unit that has failed by its limit: how often it was tried again in vain."""
    _orphans: dict[tuple[str, str], float] = field(init=False, factory=dict)
    """``(stage, request)`` of computes whose request is over, and the time when that was first seen."""
    _aborts: tuple[float, float] | None = field(init=False, default=None)
    """The times of the first and the last abort that a process may not have read: it has answered no later ping."""

    @property
    def serves(self) -> bool:
        return self.state in (UnitState.READY, UnitState.STALLED)

    @property
    def must_be_watched(self) -> bool:
        """True if :meth:`beat` must be called although no request is in flight: a process may compute for one that is over."""
        if not self.serves:
            return False
        return self._aborts is not None or any(
            each.computes or each.pinged is not None for each in self._processes.values()
        )

    @property
    def deadline(self) -> float | None:
        """The time when :meth:`clock` must be called, if any."""
        times = [self._start_by, self._restart_at, *(each.due for each in self._exits)]
        return min((each for each in times if each is not None), default=None)

    @property
    def _is_starting(self) -> bool:
        return self._is_launched and not self.serves

    def launch(self, now: float) -> list[Action]:
        """Begin the first start."""
        self._is_launched = True
        self._restart_at = None
        self._processes = {name: _Process() for name in self.names}
        self._start_by = now + self.startup_timeout
        self._exits.clear()
        self._orphans.clear()
        self._aborts = None
        return [Launch()]

    def launch_failed(self, launched: Iterable[str], reason: str, now: float) -> list[Action]:
        """A process could not be started; those of ``launched`` were."""
        kept = set(launched)
        for name, process in self._processes.items():
            process.is_running = name in kept
        if not self._is_launched:
            self._restart_when_all_are_gone(now)
        return self._down(f"its process could not be started: {reason}", now)

    def process_is_ready(self, name: str, now: float) -> list[Action]:
        """A process has built its stages."""
        self._processes[name].is_ready = True
        return self._serve()

    def _serve(self) -> list[Action]:
        """Serve, if every process is ready and it is known what died with their predecessors: of that, they must get no second half."""
        if (
            self._unsettled
            or not self._is_starting
            or not all(each.is_ready and each.is_running for each in self._processes.values())
        ):
            return []
        self._start_by = self._trials = None
        again, self._has_started = self._has_started, True
        return [*self._enter(UnitState.READY), Ready(again), *([] if again else [Started()])]

    def start_failed(self, stage: str | None, problem: str, trace: str, now: float) -> list[Action]:
        """A process cannot build a stage, and says why; it ends by itself."""
        if not self._is_starting:
            return []
        text = f"stage {stage!r} could not be started: {problem}\n{trace}".rstrip()
        return self._down(problem, now, Started(text))

    def exited(self, name: str, reason: str, now: float) -> list[Action]:
        """A process has ended."""
        process = self._processes[name]
        process.is_running = False
        where = f" (rank process {name!r})" if len(self.names) > 1 else ""
        if self._is_launched and not process.is_ready:
            self._exits.append(_Exit(now + LAST_MESSAGE_SECONDS, f"{reason}{where}"))
            return []
        return self._gone(f"{reason}{where}", now)

    def clock(self, now: float) -> list[Action]:
        """Do what is due."""
        actions: list[Action] = []
        due = [each for each in self._exits if each.due <= now]
        self._exits = [each for each in self._exits if each.due > now]
        for each in due:
            actions += self._gone(each.reason, now)
        if self._start_by is not None and self._start_by <= now:
            late = [name for name, process in self._processes.items() if not process.is_ready]
            reason = f"not ready within its startup_timeout of {self.startup_timeout:g} s"
            actions += self._down(reason, now, Started(f"stage {self.label!r}: {reason}", late))
        if self._restart_at is not None and self._restart_at <= now:
            self.restarts += 1
            actions += self.launch(now)
        return actions

    def cut(self, reason: str, now: float) -> list[Action]:
        """A connection to it has ended, though its processes live: what was on its way is lost."""
        return self._down(reason, now) if self.serves else []

    def _gone(self, reason: str, now: float) -> list[Action]:
        if not self._is_launched:
            self._restart_when_all_are_gone(now)
            return []
        gone = [name for name, process in self._processes.items() if not process.is_running]
        return self._down(reason, now, Started(f"stage {self.label!r} could not be started: {reason}", gone))

    def _down(self, reason: str, now: float, start: Started | None = None) -> list[Action]:
        if not self._is_launched:
            return []
        self._is_launched = False
        self._start_by = None
        self.reason = reason
        if not self._has_started:
            self._has_started = True
            failure = start or Started(f"stage {self.label!r} could not be started: {reason}")
            return [Kill(), *self._enter(UnitState.FAILED), failure]
        if self._trials is not None:
            self._trials += 1
            return self._fail(reason, now)
        self._deaths.append(now)
        self._unsettled.add(now)
        while self._deaths[0] < now - self.policy.window:
            self._excused.discard(self._deaths.popleft())
        self._is_beyond_limit = self._counted > self.policy.limit
        # Died also if it was not ready yet: that it was may lie unread here, and others may have written to it.
        actions = [Kill(), *self._enter(UnitState.RESTARTING), Died(reason)]
        self._restart_when_all_are_gone(now)
        return actions

    @property
    def last_death(self) -> float:
        """The time of the last death."""
        return self._deaths[-1]

    @property
    def _counted(self) -> int:
        return len(self._deaths) - len(self._excused)

    def excuse(self, death: float) -> None:
        """A request was the cause of the death at that time: it does not count for the limit, but for the pauses between restarts."""
        if death in self._deaths and self.policy.limit:
            self._excused.add(death)

    def settled(self, death: float, now: float) -> list[Action]:
        """Everything known about the death at that time has been told. If it was one too many, the unit has failed."""
        self._unsettled.discard(death)
        if not self._is_beyond_limit or death != self.last_death:
            return self._serve()
        self._is_beyond_limit = False
        if self._counted > self.policy.limit:
            self._trials = 0
            return [*self._enter(UnitState.FAILED), *self._fail(self.reason, now)]
        self._restart_when_all_are_gone(now)
        return []

    def _fail(self, reason: str, now: float) -> list[Action]:
        self._restart_when_all_are_gone(now)
        return [Kill(), Failed(reason, len(self._deaths) + (self._trials or 0), self._pause)]

    @property
    def _pause(self) -> float | None:
        """The seconds for which a unit that has failed by its limit is left alone; with a limit of 0, it is so for good."""
        if self._trials is None or self.policy.limit == 0:
            return None
        window = max(self.policy.window, 1.0)
        return min(window * 2.0 ** min(self._trials, 10), max(window, LONGEST_PAUSE_SECONDS))

    def _restart_when_all_are_gone(self, now: float) -> None:
        if (
            self._is_beyond_limit
            or self._restart_at is not None
            or any(process.is_running for process in self._processes.values())
        ):
            return
        if self.state is UnitState.FAILED and self._pause is not None:
            self._restart_at = now + self._pause
        elif self.state is UnitState.RESTARTING:
            before = len(self._deaths) - 1
            pause = min(self.policy.backoff * 2 ** (before - 1), self.policy.backoff_limit) if before > 0 else 0.0
            self._restart_at = now + pause

    def beat(self, now: float) -> list[Action]:
        """Look after processes that do not answer, and ping the others. Called once a second while there is work."""
        if not self.serves:
            return []
        actions: list[Action] = []
        limit = max(self.compute_timeouts.values(), default=COMPUTE_SECONDS)  # any of its stages may hold the process
        for name, process in self._processes.items():
            if process.pinged is None:
                process.pinged = now
                actions.append(Ping(name))
                continue
            silent = now - process.pinged
            if silent >= STALL_SECONDS and self.state is UnitState.READY:
                actions += [Stalled(name), *self._enter(UnitState.STALLED)]
            if self.state is UnitState.STALLED and silent >= limit:
                return [*actions, *self._down(f"its process {name!r} has not answered for {silent:.0f} s", now)]
            grace = min(limit, ABORT_GRACE_SECONDS)
            if self.state is UnitState.STALLED and self._aborts is not None and now - self._aborts[0] >= grace:
                reason = f"its process {name!r} has not answered for {silent:.0f} s and drops no aborted request"
                return [*actions, *self._down(reason, now)]
        return actions

    def request_is_over(self, now: float) -> None:
        """A request was aborted, or has failed elsewhere: its processes must drop it."""
        self._aborts = (now, now) if self._aborts is None else (self._aborts[0], now)

    def answered(
        self, name: str, running: Sequence[RunningCompute], in_flight: Mapping[str, object], now: float
    ) -> list[Action]:
        """A process has answered a ping.

        Args:
            running: its running computes.
            in_flight: the requests that are not over.
        """
        if not self.serves:
            return []
        process = self._processes[name]
        if process.pinged is not None:
            process.answered, process.pinged = process.pinged, None
        process.computes = bool(running)
        actions: list[Action] = []
        if self.state is UnitState.STALLED and all(each.pinged is None for each in self._processes.values()):
            actions += self._enter(UnitState.READY)
        if self._aborts is not None:
            read = min(each.answered for each in self._processes.values())
            if read >= self._aborts[0]:
                self._aborts = None if read >= self._aborts[1] else (self._aborts[1], self._aborts[1])
        return actions + self._check(running, in_flight, now)

    def _check(self, running: Sequence[RunningCompute], in_flight: Mapping[str, object], now: float) -> list[Action]:
        orphans = {(each.stage, each.request_id) for each in running if each.request_id not in in_flight}
        self._orphans = {each: self._orphans.get(each, now) for each in orphans}
        for each in running:
            limit = self.compute_timeouts.get(each.stage, COMPUTE_SECONDS)
            request = each.request_id.partition("~")[0]  # without the number of its attempt
            if each.seconds >= limit:
                return self._down(
                    f"the compute of request {request!r} in stage {each.stage!r} has not ended within its "
                    f"compute_timeout of {limit:g} s",
                    now,
                )
            since = self._orphans.get((each.stage, each.request_id), now)
            if now - since >= min(limit, ABORT_GRACE_SECONDS):
                return self._down(
                    f"the compute of request {request!r} in stage {each.stage!r} goes on "
                    f"{now - since:.0f} s after the request was aborted",
                    now,
                )
        return []

    def stop(self) -> None:
        """From now on its processes are meant to end."""
        self._is_launched = False
        self.state = UnitState.STOPPED
        self._start_by = self._restart_at = None
        self._is_beyond_limit = False
        self._exits.clear()

    def _enter(self, state: UnitState) -> list[Action]:
        if state is self.state:
            return []
        self.state = state
        return [Changed(state)]
