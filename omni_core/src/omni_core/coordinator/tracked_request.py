"""The state of one request, as the coordinator and its clients see it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from attrs import define, field, frozen

from omni_core.coordinator.input_stream import InputStream
from omni_core.errors import OmniError
from omni_core.protocol.messages import OmniRequest


class RequestState(Enum):
    """The life of a request: pending until it is sent to the entry stage, running, and one of three ends."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


@frozen
class StreamEvent:
    """One result for a client: partial (``final`` is false), or the whole result of a terminal stage."""

    stage: str
    data: Any
    final: bool
    nbytes: int = field(default=0, eq=False, repr=False)


@define(eq=False)
class TrackedRequest:
    """A request that was admitted.

    Attributes:
        request: as it is sent to the stages, with its placement.
        original: as the client gave it, for further attempts, and to know its content again if its process dies; ``None`` if it is
            large and cannot run again.
        digest: of its content then.
        terminals: terminal stages whose results are expected still.
        since: admission, in seconds of the injected clock.
        wants_partial: the client reads partial results.
        attempt_id: the name of the running attempt in messages to stages: a new one for every attempt.
        strikes: deaths of processes that count against this request.
        death: number of the death that made it a suspect; 0 if none did.
        excuses: one for each death that it was in and whose cause is not known: called where it turns out to be the cause.
        is_cause: this request, or one of the same content, was found to be the cause of a death.
        quiet_until: until then it waits for the others to end before it runs again.
        was_read: the client has seen a partial result, so that the request cannot run again.
        unread_bytes: the size of its unread events.
        paused_at: when its stages were told to send no more partial results, or its client has read one since; ``None`` if they send.
        is_watched: a timer looks at ``paused_at``.
        deadline_passed: the stages are being asked what they wait for; the request fails as soon as they have answered.
        waiter: resolved by the asyncio shell at news for the client.
        is_over: it has ended; its state is one of the three ends.
        keeps_events: it fails by an error of a stage; what was streamed before is read first.
        input: of a request whose input comes as a stream.
    """

    request_id: str
    original: OmniRequest | None
    request: OmniRequest
    terminals: set[str]
    since: float
    wants_partial: bool
    attempt_id: str = ""
    state: RequestState = RequestState.PENDING
    events: deque[StreamEvent] = field(factory=deque)
    error: OmniError | None = None
    attempts: int = 0
    strikes: int = 0
    death: int = 0
    excuses: list[Callable[[], None]] = field(factory=list)
    had_doubt: bool = False
    is_cause: bool = False
    quiet_until: float = 0.0
    was_read: bool = False
    digest: bytes | None = None
    unread_bytes: int = 0
    paused_at: float | None = None
    is_watched: bool = False
    deadline_passed: bool = False
    waiting_for: dict[str, str] = field(factory=dict)
    unanswered: int = 0
    waiter: asyncio.Future[None] | None = None
    is_over: bool = False
    keeps_events: bool = False
    input: InputStream | None = None

    @property
    def may_repeat(self) -> bool:
        """True if nothing of its results was read, and its input, if that is a stream, has not begun."""
        return not self.was_read and not (self.input is not None and self.input.has_begun)
