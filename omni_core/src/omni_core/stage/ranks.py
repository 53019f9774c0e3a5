"""Tensor parallel stages: every rank's scheduler sees the same inbox, so every rank makes the same decisions (seed 000).

Rank 0 owns the stage's IO. Each time its scheduler takes from its inbox, what it took, and the aborts it applied first, goes
to the followers, whose inboxes give exactly that, call for call. So a scheduler takes part if what it does depends on nothing
but what ``inbox.get`` and ``inbox.drain`` return (not on ``len(inbox)``, not on the time).
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable

from attrs import evolve, field, frozen

from omni_core.observe.profiler import Recorder, StageRecorder
from omni_core.protocol.codec import register
from omni_core.protocol.specs import ProcessSpec
from omni_core.scheduling.base import IncomingMessage, MessageQueue, Scheduler

logger = logging.getLogger(__name__)

register(IncomingMessage)


@register
@frozen
class WorkMessage:
    """Rank 0 to its followers: what one look into the inbox gave. ``aborted`` is applied before ``items`` are returned."""

    stage: str
    items: list[IncomingMessage] = field(factory=list)
    aborted: list[str] = field(factory=list)


class LeaderInbox(MessageQueue[IncomingMessage]):
    """Rank 0's inbox. Aborts wait here too, until the scheduler looks in: only so can they have a place in the order.

    Args:
        publish: sends a look's items and aborts to every follower.
        abort: the scheduler's own ``abort``; called in the scheduler's thread.
    """

    def __init__(
        self, publish: Callable[[list[IncomingMessage], list[str]], None], abort: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._publish = publish
        self._abort = abort
        self._aborts: list[str] = []

    def request_abort(self, request_id: str) -> None:
        """Abort a request at the scheduler's next look. From any thread."""
        with self._changed:
            self._aborts.append(request_id)
            self._changed.notify()

    def get(self, timeout: float | None = None) -> IncomingMessage | None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._can_read() or self._aborts, timeout)
                if self._closed and not self._items:
                    return None
                if not self._can_read() and not self._aborts:
                    return None  # the timeout
            items = self.drain(1)
            if items:
                return items[0]

    def drain(self, limit: int | None = None) -> list[IncomingMessage]:
        with self._changed:
            aborts, self._aborts = self._aborts, []
        for request_id in aborts:
            self._abort(request_id)
        items = super().drain(limit)
        self._publish(items, aborts)
        return items


class FollowerInbox(MessageQueue[IncomingMessage]):
    """Another rank's inbox: gives what rank 0's gave. What anybody else puts is dropped."""

    def __init__(self, abort: Callable[[str], None]) -> None:
        super().__init__()
        self._abort = abort
        self._looks: deque[WorkMessage] = deque()

    def feed(self, look: WorkMessage) -> None:
        """What rank 0's next look gave."""
        with self._changed:
            self._looks.append(look)
            self._changed.notify()

    def put(self, item: IncomingMessage) -> None:
        return

    def get(self, timeout: float | None = None) -> IncomingMessage | None:
        while True:
            items = self.drain()
            if items:
                return items[0]
            if self.closed:
                return None

    def drain(self, limit: int | None = None) -> list[IncomingMessage]:
        with self._changed:
            self._changed.wait_for(lambda: self._looks or self._closed)
            if not self._looks:
                return []
            look = self._looks.popleft()
        for request_id in look.aborted:
            self._abort(request_id)
        if self.tap is not None:
            self.tap("put", look.items)
        return self._taken(look.items)


class Follower:
    """A rank above 0: a scheduler without IO of its own.

    Args:
        on_death: called in the scheduler's thread if its loop ends with an exception; the other ranks cannot go on then.
    """

    def __init__(self, name: str, scheduler: Scheduler, on_death: Callable[[], None]) -> None:
        self.name = name
        self.scheduler = scheduler
        self._on_death = on_death
        self._inbox = FollowerInbox(scheduler.abort)
        scheduler.inbox = self._inbox
        scheduler.outbox.on_put = self._discard
        self._thread = threading.Thread(target=self._run, name=f"scheduler-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the scheduler to stop after its running step."""
        self.scheduler.stop()

    def join(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until it has. It may be in a collective that the other ranks have left."""
        self._thread.join(timeout)

    def feed(self, look: WorkMessage) -> None:
        self._inbox.feed(look)

    def profile(self, recorder: Recorder | None) -> None:
        """Record when its scheduler takes what; ``None``: no more."""
        self._inbox.tap = StageRecorder(recorder, self.name).inbox if recorder is not None else None

    def statistics(self) -> dict[str, float]:
        offered = getattr(self.scheduler, "statistics", None)
        return dict(offered()) if offered is not None else {}

    def _discard(self) -> None:
        self.scheduler.outbox.drain()

    def _run(self) -> None:
        try:
            self.scheduler.start()
        except BaseException:
            logger.exception("the scheduler of a rank of stage %r stopped", self.name)
            self._on_death()


def with_rendezvous(processes: list[ProcessSpec]) -> list[ProcessSpec]:
    """The ranks' specs with an address where they meet: a free port of the loopback interface, new for every launch."""
    if len(processes) == 1:
        return processes
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    return [
        evolve(
            process,
            stages=[evolve(stage, injected={**stage.injected, "tp_rendezvous": address}) for stage in process.stages],
        )
        for process in processes
    ]
