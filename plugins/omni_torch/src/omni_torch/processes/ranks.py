"""Tensor parallel stages: every rank's scheduler sees the same inbox, so every rank makes the same decisions.

Rank 0 owns the stage's IO. What is put into its inbox is encoded once and sent to the followers at once; each time its scheduler
takes from the inbox, the numbers of what it took, and the aborts it applied first, follow. The followers' inboxes give exactly that,
call for call. So a scheduler takes part if what it does depends on nothing but what ``inbox.get`` and ``inbox.drain`` return, and on
``inbox.moment``, the time of that call on rank 0 (not on ``len(inbox)``, not on a clock). It must use ``self.inbox`` and ``self.outbox``
at each call: both are replaced here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from attrs import define, field

from omni_core.api import IncomingMessage, MessageQueue, OutgoingMessage, Scheduler
from omni_core.runtime_api import Recorder, StageRecorder, StageSpec, StageThread, decode, encode, message, register

logger = logging.getLogger(__name__)

register(IncomingMessage)

DISAGREEMENT_SECONDS = 5.0
"""The time by which all ranks must have failed a request that one of them has failed."""


@message
class ItemMessage:
    """Rank 0 to its followers: an item of its inbox, encoded. ``number`` counts the items of the stage."""

    stage: str
    number: int
    body: bytes


@message
class WorkMessage:
    """Rank 0 to its followers: the result of one look into the inbox.

    Attributes:
        taken: the numbers of the items that the look gave.
        removed: those of items that were dropped before.
        aborted: the requests to abort before the items are returned.
        timed_out: a wait has ended without an item.
        moment: the time of the look on rank 0's monotonic clock, in seconds.
    """

    stage: str
    taken: list[int] = field(factory=list)
    removed: list[int] = field(factory=list)
    aborted: list[str] = field(factory=list)
    timed_out: bool = False
    moment: float = 0.0


@message
class RankError:
    """A follower to rank 0: the compute of a request has failed on its rank."""

    stage: str
    rank: int
    request_id: str
    error: str


class RankInbox(MessageQueue[IncomingMessage]):
    """The inbox of one rank.

    Attributes:
        moment: the time of the last look into rank 0's inbox, in seconds of rank 0's monotonic clock: the same number on every rank
            between the same calls, and the only time that a scheduler with ranks may decide by.
    """

    moment: float = 0.0


class LeaderInbox(RankInbox):
    """Rank 0's inbox. Aborts wait here too, until the scheduler looks in: only so do they have a place in the order.

    Args:
        publish: sends an :class:`ItemMessage` or :class:`WorkMessage` to every follower. Items are published by the thread that
            puts them, which is never the scheduler's.
        abort: the scheduler's own ``abort``; called in the scheduler's thread.
    """

    def __init__(self, stage: str, publish: Callable[[Any], None], abort: Callable[[str], None]) -> None:
        super().__init__()
        self._stage = stage
        self._publish = publish
        self._abort = abort
        self._aborts: list[str] = []
        self._numbers: deque[int] = deque()
        """The numbers of the queued items, in their order."""
        self._removed: list[int] = []
        self._count = 0

    def put(self, item: IncomingMessage) -> None:
        """Publish ``item`` and append it.

        Raises:
            CodecError, TransportError: the item cannot be sent to the other ranks; it has not been queued.
        """
        body = encode(item)
        with self.changed:
            if self.closed:
                return
            number = self._count = self._count + 1
        try:
            self._publish(ItemMessage(self._stage, number, body))
        except BaseException:
            with self.changed:
                self._removed.append(number)  # some followers may have it
            raise
        with self.changed:
            if not self.closed:
                self._numbers.append(number)
                super().put(item)

    def request_abort(self, request_id: str) -> None:
        """Abort a request at the scheduler's next look. From any thread."""
        with self.changed:
            self._aborts.append(request_id)
            self.changed.notify()

    def get(self, timeout: float | None = None) -> IncomingMessage | None:
        while True:
            with self.changed:
                self.wait_until(lambda: self.can_read() or self._aborts, timeout)
                if self.closed and not self.items:
                    return None
                timed_out = not self.can_read() and not self._aborts
            if timed_out:
                self.moment = time.monotonic()
                self._publish(WorkMessage(self._stage, timed_out=True, moment=self.moment))
                return None
            items = self.drain(1)
            if items:
                return items[0]

    def drain(self, limit: int | None = None) -> list[IncomingMessage]:
        with self.changed:
            aborts, self._aborts = self._aborts, []
        self.moment = time.monotonic()
        for request_id in aborts:
            self._abort(request_id)
        with self.changed:
            items = super().drain(limit)
            taken = [self._numbers.popleft() for _ in items]
            removed, self._removed = self._removed, []
        self._publish(WorkMessage(self._stage, taken, removed, aborts, moment=self.moment))
        return items

    def remove(self, unwanted: Callable[[IncomingMessage], bool]) -> None:
        with self.changed:
            queued = zip(self.items, self._numbers, strict=True)
            kept = [(item, number) for item, number in queued if not unwanted(item)]
            self._removed += set(self._numbers) - {number for _, number in kept}
            self.items = deque(item for item, _ in kept)
            self._numbers = deque(number for _, number in kept)


class FollowerInbox(RankInbox):
    """Another rank's inbox: gives what rank 0's gave. Items that are put here by others are dropped."""

    def __init__(self, abort: Callable[[str], None]) -> None:
        super().__init__()
        self._abort = abort
        self._arrived: dict[int, IncomingMessage] = {}
        self._looks: deque[WorkMessage] = deque()

    def feed(self, message: ItemMessage | WorkMessage) -> None:
        """Take rank 0's next message.

        Raises:
            CodecError: an item cannot be read here; this rank cannot go on.
        """
        item: Any = decode(message.body) if isinstance(message, ItemMessage) else None
        with self.changed:
            if isinstance(message, ItemMessage):
                self._arrived[message.number] = item
            else:
                self._looks.append(message)
            self.changed.notify()

    def put(self, item: IncomingMessage) -> None:
        return

    def get(self, timeout: float | None = None) -> IncomingMessage | None:
        while True:
            timed_out, items = self._take_look()
            if items:
                return items[0]
            if timed_out or self.closed:
                return None

    def drain(self, limit: int | None = None) -> list[IncomingMessage]:
        return self._take_look()[1]

    def _take_look(self) -> tuple[bool, list[IncomingMessage]]:
        """Wait for the next look of rank 0. Returns True if that ended by its timeout, and the items that it gave."""
        with self.changed:
            self.wait_until(lambda: self.closed or self._has_look())
            if not self._has_look():
                return False, []
            look = self._looks.popleft()
            for number in look.removed:
                self._arrived.pop(number, None)
            items = [self._arrived.pop(number) for number in look.taken]
            self.moment = look.moment
        for request_id in look.aborted:
            self._abort(request_id)
        if self.tap is not None:
            self.tap("put", items)
        return look.timed_out, self.taken(items)

    def _has_look(self) -> bool:
        """The next look has come, with all its items: they travel by another thread of rank 0."""
        return bool(self._looks) and all(number in self._arrived for number in self._looks[0].taken)


class ErrorOutbox(MessageQueue[OutgoingMessage]):
    """An outbox that tells of each failed request, in the thread that puts."""

    def __init__(self, on_error: Callable[[str, str], None]) -> None:
        super().__init__()
        self._on_error = on_error

    def put(self, item: OutgoingMessage) -> None:
        if item.type == "error":
            self._on_error(item.request_id, type(item.data).__name__)
        super().put(item)


@define
class RankAgreement:
    """Checks that all ranks fail the same requests: one that fails alone has left a step in which the others wait for it.

    Without IO: every event takes the time in seconds. Not for use by several threads.
    """

    ranks: int
    _failed: dict[str, dict[int, str]] = field(factory=dict)
    _since: dict[str, float] = field(factory=dict)

    def failed(self, rank: int, request_id: str, error: str, now: float) -> float | None:
        """A rank has failed a request. Returns the time when :meth:`check` must be called, if the others have not."""
        failures = self._failed.setdefault(request_id, {})
        failures[rank] = error
        self._since.setdefault(request_id, now)
        if len(failures) == self.ranks:
            del self._failed[request_id], self._since[request_id]
            return None
        return self._since[request_id] + DISAGREEMENT_SECONDS

    def check(self, now: float) -> str | None:
        """The reason to end the stage, if ranks disagree for too long."""
        for request_id, since in self._since.items():
            if now - since >= DISAGREEMENT_SECONDS:
                failed = ", ".join(f"{rank} ({error})" for rank, error in sorted(self._failed[request_id].items()))
                return f"request {request_id!r} has failed on rank {failed} and not on the others: the ranks are out of step"
        return None


class Leader:
    """Rank 0's side of a tensor parallel stage: replaces its scheduler's queues. Made on the event loop.

    Args:
        publish: sends a message to every follower; from any thread.
        on_death: called on the event loop if the ranks are out of step; the stage cannot go on then.
    """

    takes: ClassVar = (RankError,)

    def __init__(
        self, stage: str, scheduler: Scheduler, ranks: int, publish: Callable[[Any], None], on_death: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._agreement = RankAgreement(ranks)
        self._on_death = on_death
        self.inbox = LeaderInbox(stage, publish, scheduler.abort)
        scheduler.inbox = self.inbox
        scheduler.outbox = ErrorOutbox(self._on_error)

    def abort(self, request_id: str) -> None:
        """Abort a request on every rank. From any thread."""
        self.inbox.request_abort(request_id)

    def take(self, message: RankError) -> None:
        """A follower has failed a request."""
        self._failed(message.rank, message.request_id, message.error)

    def _on_error(self, request_id: str, error: str) -> None:
        self._loop.call_soon_threadsafe(self._failed, 0, request_id, error)

    def _failed(self, rank: int, request_id: str, error: str) -> None:
        due = self._agreement.failed(rank, request_id, error, self._loop.time())
        if due is not None:
            self._loop.call_at(due, self._check)

    def _check(self) -> None:
        reason = self._agreement.check(self._loop.time())
        if reason is not None:
            logger.error("%s", reason)
            self._on_death()


class Follower(StageThread):
    """A rank above 0: a scheduler without IO of its own.

    Args:
        rank: its number.
        send: sends a message to rank 0; from any thread.
        on_death: called if its loop ends by itself, or it cannot read what rank 0 sends; the other ranks cannot go on then.
    """

    takes: ClassVar = (ItemMessage, WorkMessage)

    def __init__(
        self,
        spec: StageSpec,
        scheduler: Scheduler,
        rank: int,
        send: Callable[[RankError], None],
        on_death: Callable[[], None],
    ) -> None:
        super().__init__(spec, scheduler)
        self._rank = rank
        self._send = send
        self._on_death = on_death
        self._phases: StageRecorder | None = None
        self._inbox = FollowerInbox(scheduler.abort)
        scheduler.inbox = self._inbox
        scheduler.outbox = ErrorOutbox(self._on_error)
        scheduler.outbox.on_put = self._discard

    def take(self, message: ItemMessage | WorkMessage) -> None:
        """Take rank 0's next message."""
        try:
            self._inbox.feed(message)
        except Exception:
            logger.exception("a rank of stage %r cannot read what rank 0 sends", self.name)
            self._on_death()

    def profile(self, recorder: Recorder | None) -> None:
        """Record when its scheduler takes what; ``None``: no more."""
        if self._phases is not None:
            self._phases.detach()
        self._phases = None if recorder is None else recorder.attach(self.name, self._inbox)

    def _on_error(self, request_id: str, error: str) -> None:
        self._send(RankError(self.name, self._rank, request_id, error))

    def _discard(self) -> None:
        self.scheduler.outbox.drain()

    def ended(self, error: RuntimeError) -> None:
        self._on_death()


class TorchRanks:
    """The service ``ranks`` (:class:`omni_core.services.Ranks`)."""

    leader = Leader
    follower = Follower
