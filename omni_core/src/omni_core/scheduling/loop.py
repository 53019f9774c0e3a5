"""The loop that every scheduler of one thread shares: two queues, an end, and aborts that no message outruns."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage

WAKE = IncomingMessage("", "stream_done")
"""Ends a wait in the inbox. It belongs to no request: skip messages without a ``request_id``."""


def pausing(request_id: str, paused: bool) -> IncomingMessage:
    """Return the message that tells a loop to compute a request no further, or to go on. In the inbox, because all ranks of a stage must
    do it at the same place.
    """
    return IncomingMessage("", "stream_done", metadata={"pause": request_id, "paused": paused})


def take_pausing(message: IncomingMessage, paused: set[str]) -> None:
    """Change the ``paused`` requests by a message of :func:`pausing`; any other is ignored."""
    metadata = message.metadata
    if not message.request_id and metadata is not None and "pause" in metadata:
        (paused.add if metadata["paused"] else paused.discard)(metadata["pause"])


class LoopScheduler(ABC):
    """A :class:`~omni_core.scheduling.base.Scheduler` whose states are touched by its own thread alone.

    :meth:`abort` only notes the request and wakes the loop. A subclass asks :meth:`is_aborted` before it takes a message in, puts
    its output with :meth:`put_out`, and calls :meth:`drop_aborted` once per turn, after it has taken in everything that it has read
    from the inbox: what was read before the abort can then begin nothing anew.

    Attributes:
        around_turn: makes each turn by calling it, while a profile records it; set from another thread.
        hold_input: lets the senders of a request's chunks wait; see :class:`~omni_core.scheduling.base.Scheduler`.
    """

    around_turn: Callable[[Callable[[], bool]], bool] | None = None

    def __init__(self) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()
        self.hold_input: Callable[[str, bool], None] = lambda request_id, held: None
        self._aborted: set[str] = set()
        self._lock = threading.Lock()

    @abstractmethod
    def turn(self) -> bool:
        """Wait for work and do some of it; ``False`` at the end.

        One turn is one call, so that an idle scheduler has no frame that keeps a payload, and its relay memory, alive.
        """

    def forget(self, request_id: str) -> None:  # noqa: B027 - optional hook
        """Drop the state of an aborted request, if there is any."""

    def start(self) -> None:
        while self.turn() if (around := self.around_turn) is None else around(self.turn):
            continue

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)
        with self._lock:
            self._aborted.add(request_id)
        self.inbox.put(WAKE)

    def is_aborted(self, request_id: str) -> bool:
        """Return whether a request was aborted and not yet forgotten."""
        return request_id in self._aborted  # one operation of the interpreter, so without the lock

    def drop_aborted(self) -> None:
        """Forget the aborted requests."""
        if not self._aborted:
            return
        with self._lock:
            aborted, self._aborted = self._aborted, set()
        for request_id in sorted(aborted):  # the order of a set differs between the ranks of a stage
            self.forget(request_id)

    def put_out(self, message: OutgoingMessage) -> None:
        """Hand a message on, unless its request was aborted."""
        if not self.is_aborted(message.request_id):
            self.outbox.put(message)
