"""The state machine of the requests: events and the time in, actions out.

It does no IO and reads no clock. Every method is one event and returns the actions that the caller must carry out, in order; all of
them take the time ``now`` in seconds of one monotonic clock. Streamed inputs have their own events (:mod:`omni_core.coordinator.inputs`).
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import evolve

from omni_core.coordinator import inputs
from omni_core.coordinator.actions import Action, Ended, Start, Wake, Withdraw
from omni_core.coordinator.deadlines import Deadlines, Due, check_timeout
from omni_core.coordinator.input_stream import InputStream
from omni_core.coordinator.reading import Readers
from omni_core.coordinator.suspects import QUIET_SECONDS, Suspects
from omni_core.coordinator.terminals import chosen_terminals
from omni_core.coordinator.timers import Timers
from omni_core.coordinator.tracked_request import RequestState, StreamEvent, TrackedRequest
from omni_core.errors import (
    InvalidRequestError,
    OmniError,
    OverloadedError,
    RequestAbortedError,
    RequestFailedError,
    is_interrupt,
    name_of,
    own_copy,
)
from omni_core.protocol.codec import Body
from omni_core.protocol.error_info import describe, error_of
from omni_core.protocol.messages import ErrorInfo, OmniRequest

REMEMBERED_IDS = 20_000

LOST_PEER_SECONDS = 0.7
"""A request that failed because another process died ends by then; the report about that death, which may run it again, takes less."""

_SHORTEST_RETRY_AFTER, _LONGEST_RETRY_AFTER = 0.1, 60.0


class RequestMachine:
    """Requests from admission to their end.

    Args:
        terminal_stages: names.
        terminal_stages_fn: ``(request) -> subset of terminal_stages | None``.
        place: chooses the replicas for an attempt of a request: stage name to replica number, for replicated stages.
        left: called when a running attempt has ended.
        max_in_flight: requests held at once; more are refused.
        retries: deaths of its process that a request survives.
        digest: a digest of a request's content, the same for equal contents.
        new_id: makes ids that no client can have chosen.
    """

    def __init__(
        self,
        *,
        terminal_stages: list[str],
        terminal_stages_fn: Callable[[OmniRequest], Any] | None = None,
        place: Callable[[str, OmniRequest], dict[str, int]] = lambda attempt_id, request: {},
        left: Callable[[str], None] = lambda attempt_id: None,
        max_in_flight: int = 256,
        retries: int = 0,
        digest: Callable[[OmniRequest], bytes | None] = lambda request: None,
        new_id: Callable[[], str] = lambda: os.urandom(16).hex(),
    ) -> None:
        self._terminals_of = partial(chosen_terminals, frozenset(terminal_stages), terminal_stages_fn)
        self._place = place
        self._left = left
        self._max_in_flight = max_in_flight
        self._retries = retries
        self._digest = digest
        self._new_id = new_id
        self._suspects = Suspects(retries)
        self._held: deque[TrackedRequest] = deque()
        self._hold_until = 0.0
        self._tracked: dict[str, TrackedRequest] = {}
        self._attempts: dict[str, TrackedRequest] = {}
        self._ended: OrderedDict[str, RequestState] = OrderedDict()
        self._timers: Timers[Due] = Timers(self._tracked, 4 * max_in_flight)
        self._deadlines = Deadlines(self._timers, self._end)
        self._readers = Readers(self._timers, self._fail)
        self._is_closed = False
        self._typical_seconds = _SHORTEST_RETRY_AFTER
        self.counts = dict.fromkeys(("admitted", "completed", "failed", "aborted", "retried", "refused"), 0)

    @property
    def in_flight(self) -> int:
        return len(self._tracked)

    def attempt(self, attempt_id: str) -> TrackedRequest | None:
        """The request of a running attempt."""
        return self._attempts.get(attempt_id)

    def attempts(self) -> dict[str, OmniRequest]:
        """The running requests, by the names that stages know them by."""
        return {name: tracked.request for name, tracked in self._attempts.items()}

    def state(self, request_id: str) -> RequestState | None:
        """The state of a request that is held or has lately ended; ``None`` for an unknown id."""
        tracked = self._tracked.get(request_id)
        return tracked.state if tracked is not None else self._ended.get(request_id)

    def is_completed(self, attempt_id: str, stage: str) -> bool:
        """Return whether the result of a terminal stage has come, or none is expected."""
        tracked = self._attempts.get(attempt_id)
        return tracked is None or stage not in tracked.terminals

    def wants(self, attempt_id: str, stage: str, *, final: bool) -> bool:
        """Return whether a result of ``stage`` is of use, so that it has to be decoded."""
        tracked = self._attempts.get(attempt_id)
        return tracked is not None and self._takes(tracked, stage, final)

    def submit(
        self,
        request: OmniRequest,
        request_id: str | None,
        *,
        wants_partial: bool,
        now: float,
        stream: InputStream | None = None,
    ) -> tuple[TrackedRequest, list[Action]]:
        """Admit a request. ``stream``: its input, which follows.

        Raises:
            OverloadedError, InvalidRequestError, ConfigError, RequestFailedError: it is refused, and counted as that.
        """
        name = request_id or self._new_id()
        try:
            self._check(request, name)
            terminals = self._terminals_of(request)
            digest = self._digest(request) if self._suspects.knows_any(now) and stream is None else None
            if digest is not None and (refusal := self._suspects.refusal(digest, now)):
                raise InvalidRequestError(refusal)
        except OmniError:
            self.counts["refused"] += 1
            raise
        tracked = TrackedRequest(name, request, request, terminals, now, wants_partial)
        tracked.input = stream
        self._tracked[name] = tracked
        self.counts["admitted"] += 1
        try:
            return tracked, self._enter(tracked, digest, now)
        except BaseException as error:
            failure = RequestFailedError(name, None, name_of(error), "it could not be begun")
            self._end(tracked, RequestState.FAILED, failure, now)
            raise

    def _enter(self, tracked: TrackedRequest, digest: bytes | None, now: float) -> list[Action]:
        request, name = tracked.request, tracked.request_id
        if request.timeout is not None:
            self._timers.set(now + request.timeout, name, self._deadlines.expire)
        if digest is not None and self._suspects.knows(digest):
            self._suspects.put(tracked, now)
            self._timers.set(tracked.quiet_until, name, lambda _, now: self._next_suspect(now))
            return self._next_suspect(now)
        if self._suspects.holds_others and now < self._hold_until:
            self._held.append(tracked)
            return []
        return self._start(tracked, now)

    def abort(self, request_id: str, now: float) -> list[Action]:
        """Drop a request; an id that is not held is ignored."""
        tracked = self._tracked.get(request_id)
        if tracked is None:
            return []
        return self._end(tracked, RequestState.ABORTED, RequestAbortedError(f"request {request_id} was aborted"), now)

    def close(self, now: float) -> list[Action]:
        """Abort all requests and refuse new ones."""
        self._is_closed = True
        self._held.clear()
        return [action for name in list(self._tracked) for action in self.abort(name, now)]

    def _check(self, request: OmniRequest, name: str) -> None:
        if self._is_closed:
            raise RequestFailedError(name, None, "PipelineStopped", "the pipeline was stopped")
        check_timeout("timeout", request.timeout)
        if name in self._tracked or name in self._ended:
            raise InvalidRequestError(f"request id {name!r} was used before; give each request an id of its own")
        if len(self._tracked) >= self._max_in_flight:
            raise self._overloaded(f"{len(self._tracked)} requests are in flight, the limit", self._typical_seconds)

    @staticmethod
    def _overloaded(reason: str, seconds: float) -> OverloadedError:
        """Return a refusal that says when to retry."""
        after = min(max(seconds, _SHORTEST_RETRY_AFTER), _LONGEST_RETRY_AFTER)
        return OverloadedError(f"{reason}; retry after {after:.1f} s", after)

    def _start(self, tracked: TrackedRequest, now: float) -> list[Action]:
        tracked.attempts += 1
        tracked.attempt_id = tracked.request_id
        if tracked.attempts > 1:
            tracked.attempt_id = f"{tracked.request_id}~{self._new_id()}"
        try:
            placement = self._place(tracked.attempt_id, tracked.request)
        except BaseException as error:
            if is_interrupt(error):
                raise
            return self.start_failed(tracked, error, now)
        if placement:
            tracked.request = evolve(tracked.request, placement=placement)
        tracked.state = RequestState.RUNNING
        self._attempts[tracked.attempt_id] = tracked
        return [Start(tracked)]

    def start_failed(self, tracked: TrackedRequest, error: BaseException, now: float) -> list[Action]:
        """Fail a request that could not be sent to the entry stage."""
        if tracked.is_over:
            return []
        deliberate = own_copy(error) if tracked.attempts == 1 else None
        if deliberate is not None:
            return self._end(tracked, RequestState.FAILED, deliberate, now)
        return self._fail(tracked, describe(error, None), now)

    def process_lost(
        self, lost: Mapping[str, str], reason: str, now: float, excuse: Callable[[], None] = lambda: None
    ) -> list[Action]:
        """Take in the death of a process.

        They run again as far as ``retries`` allow (see :mod:`omni_core.coordinator.suspects`) and the client has read nothing.

        Args:
            lost: the attempts that it held, each with a stage that held it.
            excuse: called when one of them is found to be the cause, now or at a later death.
        """
        stages = {id(self._attempts[name]): stage for name, stage in lost.items() if name in self._attempts}
        victims = [tracked for tracked in self._tracked.values() if id(tracked) in stages]
        if not victims:
            return []
        verdict = self._suspects.died(victims, now, excuse)
        actions = [action for each in victims for action in self._withdraw(each)]
        for each in verdict.failed:
            stage = stages.get(id(each))
            where = f"that of stage {stage!r}: {reason}"
            self._suspects.blame_lost(each, victims, self._content_of(each), where, now)
            consumed = f"; {each.input.progress}" if each.input is not None else ""
            actions += self._fail(each, ErrorInfo(stage, "ProcessDied", reason + consumed), now)
        for each in victims:
            if each.quiet_until > now and not each.is_over:
                self._timers.set(each.quiet_until, each.request_id, lambda _, now: self._next_suspect(now))
        for each in verdict.again:
            actions += self._restart(each, now)
        return actions + self._next_suspect(now)

    def _withdraw(self, tracked: TrackedRequest) -> list[Action]:
        """Take a running attempt back: the request is pending again."""
        del self._attempts[tracked.attempt_id]
        self._left(tracked.attempt_id)
        tracked.state = RequestState.PENDING
        if tracked.input is not None:
            tracked.input.is_ready = False
        return [Withdraw(tracked.attempt_id)]

    def _restart(self, tracked: TrackedRequest, now: float) -> list[Action]:
        if tracked.is_over or tracked.deadline_passed:
            return []
        if tracked.attempts and tracked.original is not None:
            tracked.events.clear()
            tracked.unread_bytes, tracked.paused_at = 0, None
            self.counts["retried"] += 1
            try:
                tracked.terminals = self._terminals_of(tracked.original)
            except OmniError as error:
                return self.start_failed(tracked, error, now)
        return self._start(tracked, now)

    def _next_suspect(self, now: float) -> list[Action]:
        """Start the next suspect if its turn has come, and the requests that were held for the last one."""
        actions: list[Action] = []
        suspect = self._suspects.next(len(self._attempts), now)
        if suspect is not None:
            actions += self._restart(suspect, now)
            if suspect.is_cause:
                self._hold_until = now + QUIET_SECONDS
                self._timers.set(self._hold_until, suspect.request_id, self._release_held)
                return actions
        return actions if self._suspects.holds_others else actions + self._release_held(None, now)

    def _release_held(self, tracked: TrackedRequest | None, now: float) -> list[Action]:
        held, self._held = self._held, deque()
        return [action for each in held if not each.is_over for action in self._start(each, now)]

    def _content_of(self, tracked: TrackedRequest) -> bytes | None:
        if tracked.original is None or tracked.input is not None:  # an input that streams is kept nowhere
            return tracked.digest
        return self._digest(tracked.original)

    def may_run_again(self) -> bool:
        """Return whether a request that a process has lost may run again, so that its inputs are kept."""
        return self._retries > 0

    def result(
        self, attempt_id: str, stage: str, data: Any, *, final: bool, now: float, nbytes: int = 0
    ) -> list[Action]:
        """Take in a result of a terminal stage, of a size in bytes. One for a request that has ended is dropped."""
        tracked = self._attempts.get(attempt_id)
        if tracked is None or not self._takes(tracked, stage, final):
            return []
        tracked.events.append(StreamEvent(stage, data, final, nbytes))
        tracked.unread_bytes += nbytes
        if final:
            tracked.terminals.discard(stage)
            if not tracked.terminals:
                return self._end(tracked, RequestState.COMPLETED, None, now)
            return [Wake(tracked)]
        return self._readers.left_unread(tracked, stage, now)

    def send(self, tracked: TrackedRequest, body: Body, has_tensors: bool, now: float) -> list[Action]:
        """Send a chunk of a request's input. See :func:`omni_core.coordinator.inputs.send`."""
        actions = inputs.send(tracked, body, has_tensors, now)
        self._deadlines.chunk_sent(tracked)
        return actions

    def read(self, tracked: TrackedRequest, event: StreamEvent, now: float) -> list[Action]:
        """Take in that the client has taken an event."""
        return self._readers.read(tracked, event, now)

    @staticmethod
    def _takes(tracked: TrackedRequest, stage: str, final: bool) -> bool:
        return stage in tracked.terminals and not tracked.deadline_passed and (final or tracked.wants_partial)

    def failure(self, attempt_id: str, info: ErrorInfo, now: float) -> list[Action]:
        """Take in a failure in a stage, or on the way to one."""
        tracked = self._attempts.get(attempt_id)
        if tracked is None:
            return []
        if not info.peer_died:
            tracked.keeps_events = True
            return self._fail(tracked, info, now)
        # The report about that death is under way and may run the request again; this only makes sure that it ends.
        stage, reason = info.stage or "", info.message

        def give_up(tracked: TrackedRequest, now: float) -> list[Action]:
            return self.process_lost({attempt_id: stage}, reason, now) if attempt_id in self._attempts else []

        self._timers.set(now + LOST_PEER_SECONDS, tracked.request_id, give_up)
        return []

    def next_timer(self) -> float | None:
        """The time at which :meth:`clock` must be called next."""
        return self._timers.next()

    def clock(self, now: float) -> list[Action]:
        """Do what is due."""
        actions: list[Action] = []
        for name, due in self._timers.pop(now):
            tracked = self._tracked.get(name)
            if tracked is not None:
                actions += due(tracked, now)
        return actions

    def asked(self, attempt_id: str, processes: int, now: float) -> list[Action]:
        """Take in the number of processes that were asked what an expired request waits for."""
        tracked = self._attempts.get(attempt_id)
        return [] if tracked is None else self._deadlines.asked(tracked, processes, now)

    def answered(self, attempt_id: str, waiting_for: Mapping[str, str], now: float) -> list[Action]:
        """Take in the answer of a process: by stage, what an expired request does there."""
        tracked = self._attempts.get(attempt_id)
        return [] if tracked is None else self._deadlines.answered(tracked, waiting_for, now)

    def _fail(self, tracked: TrackedRequest, info: ErrorInfo, now: float) -> list[Action]:
        return self._end(tracked, RequestState.FAILED, error_of(info, tracked.request_id), now)

    def _end(self, tracked: TrackedRequest, state: RequestState, error: OmniError | None, now: float) -> list[Action]:
        if tracked.is_over:
            return []
        if was_running := self._attempts.pop(tracked.attempt_id, None) is not None:
            self._left(tracked.attempt_id)
        tracked.state, tracked.error, tracked.is_over = state, error, True
        self.counts[state.value] += 1
        del self._tracked[tracked.request_id]
        self._ended[tracked.request_id] = state
        if len(self._ended) > REMEMBERED_IDS:
            self._ended.popitem(last=False)
        actions: list[Action] = [Withdraw(tracked.attempt_id)] if was_running and error is not None else []
        if error is not None and not tracked.keeps_events:
            tracked.events.clear()
        if error is None:
            if self._suspects.knows_any(now):
                self._suspects.absolve(self._content_of(tracked))
            self._suspects.completed()
            self._typical_seconds += 0.1 * (now - tracked.since - self._typical_seconds)
            if tracked.input is not None and not tracked.input.is_finished:
                actions.append(Withdraw(tracked.attempt_id))  # chunks that are on their way belong to no request
        actions.append(Ended(tracked))
        if self._suspects.alone is not None or len(self._suspects):
            self._suspects.drop(tracked)
            actions += self._next_suspect(now)
        return actions
