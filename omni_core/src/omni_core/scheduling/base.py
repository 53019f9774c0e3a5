"""The scheduler contract: an inbox, an outbox, and a loop between them.

A scheduler owns the compute of one stage. The stage feeds its inbox and drains its outbox and never asks which scheduler
it has. Nothing here polls: both queues wake their reader.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from attrs import define

from omni_core.protocol.messages import OmniRequest

T = TypeVar("T")

IncomingType = Literal["new_request", "stream_chunk", "stream_done"]
OutgoingType = Literal["result", "stream", "error"]


@define
class IncomingMessage:
    """Work for a scheduler.

    Attributes:
        request_id: the request; empty in a message that only wakes the loop.
        type: ``new_request`` (``data`` is the :class:`~omni_core.protocol.messages.StagePayload`, after fan-in),
            ``stream_chunk`` (``data`` is the chunk) or ``stream_done`` (no data: ``source`` has sent its last chunk).
        data: see ``type``. Read-only: it may be shared with other stages of the same process.
        source: the stage that sent it; for a fan-in, the stage that completed it; ``None`` from the client, whose input may be a stream.
        metadata: what the sender attached to a stream chunk.
        request: the request without its inputs, because a chunk may come before the payload; ``None`` only in a ``stream_done`` that
            comes before anything else.

    Order: chunks of one source arrive in the order sent, before its ``stream_done``. A source's ``new_request`` may come
    before, between or after its chunks. A request of a stage with stream sources is complete when its payload and the
    ``stream_done`` of every active source have arrived.
    """

    request_id: str
    type: IncomingType
    data: Any = None
    source: str | None = None
    metadata: dict[str, Any] | None = None
    request: OmniRequest | None = None


@define
class OutgoingMessage:
    """The output of a scheduler.

    Attributes:
        request_id: the request.
        type: ``result`` (final; ``data`` is the payload's data or a StagePayload), ``stream`` (a partial result) or
            ``error`` (``data`` is the exception). Exactly one ``result`` or ``error`` per request, after its streams.
        data: see ``type``. Must not be changed after it was put.
        target: for ``stream``: a stage of ``stream_to``, or ``None``: the client where the stage is terminal, else every
            stage of ``stream_to``.
        metadata: small plain data that travels with a stream chunk.
    """

    request_id: str
    type: OutgoingType
    data: Any = None
    target: str | None = None
    metadata: dict[str, Any] | None = None


class MessageQueue(Generic[T]):
    """A thread-safe FIFO whose reader is either a blocked thread or a callback, never a poll.

    A scheduler thread calls :meth:`get` and sleeps on a condition. An event loop registers ``on_put``, which is called
    in the *putting* thread after each put (an asyncio reader passes ``loop.call_soon_threadsafe``-based wake-ups).

    Attributes:
        read_at: when its reader has last looked in, on ``time.monotonic()``; infinity while a reader waits here.
        put_at: when something was last put.
        on_take: called with what the reader takes, in its thread and under the queue's lock.
        items: what is queued. For subclasses, with ``changed``.
        changed: the lock of the queue, notified of each change.
        tap: called with ``("put", items)`` and ``("take", items)`` in the thread that does it, while a profile is on.
    """

    def __init__(self, on_put: Callable[[], None] | None = None) -> None:
        self.items: deque[T] = deque()
        self.changed = threading.Condition()
        self._closed = False
        self._held = False
        self.read_at = self.put_at = monotonic()
        self._most: int | None = None
        self._drainer = 0
        self.on_put = on_put
        self.on_take: Callable[[list[T]], None] | None = None
        self.tap: Callable[[str, list[T]], None] | None = None

    def __len__(self) -> int:
        return len(self.items)

    def put(self, item: T) -> None:
        """Append ``item`` and wake the reader. After :meth:`close` the item is dropped, as it has no reader.

        Waits while the queue is full, if it is bounded.
        """
        with self.changed:
            if self._most is not None and self.is_full and threading.get_ident() != self._drainer:
                self.changed.wait_for(lambda: self._closed or not self.is_full)
            if self._closed:
                return
            if self.tap is not None:
                self.tap("put", [item])
            self.items.append(item)
            self.put_at = monotonic()
            self.changed.notify_all()  # of several readers, each may take others
        if self.on_put is not None:
            self.on_put()

    def get(self, timeout: float | None = None) -> T | None:
        """Return the next item, waiting for one; ``None`` once the queue is closed and empty, or at ``timeout`` (seconds)."""
        with self.changed:
            if self.items and not self._held:
                self.read_at = monotonic()
            elif not self.wait_until(self.can_read, timeout) or not self.items:
                return None
            item = self.items.popleft()
            if self._is_observed:
                self.taken([item])
            return item

    def take(self, accept: Callable[[T], bool]) -> T | None:
        """Return the first item that ``accept`` returns true for, waiting for one; ``None`` once the queue is closed and has none.

        Several threads may take from one queue. ``accept`` is called under the queue's lock: the item that it accepts is taken.
        """
        with self.changed:
            while True:
                for index, item in enumerate(self.items if self.can_read() else ()):
                    if accept(item):
                        del self.items[index]
                        return self.taken([item])[0]
                if self._closed:
                    return None
                self.changed.wait()

    def drain(self, limit: int | None = None) -> list[T]:
        """Return the items that are there now, at most ``limit`` of them, without waiting."""
        with self.changed:
            self.read_at = monotonic()
            if not self.can_read():
                return []
            if limit is None or limit >= len(self.items):
                items = list(self.items)
                self.items.clear()
            else:
                items = [self.items.popleft() for _ in range(limit)]
            return self.taken(items)

    def wait_until(self, ready: Callable[[], Any], timeout: float | None = None) -> bool:
        """Wait until ``ready()``, under the lock; ``False`` at ``timeout``."""
        if not (is_ready := bool(ready())):
            self.read_at = math.inf
            is_ready = bool(self.changed.wait_for(ready, timeout))
        self.read_at = monotonic()
        return is_ready

    @property
    def _is_observed(self) -> bool:
        return self.on_take is not None or self.tap is not None or self._most is not None

    def taken(self, items: list[T]) -> list[T]:
        """Tell those who observe the queue that its reader has taken ``items``, under the lock; return them."""
        if self._most is not None:
            self.changed.notify_all()
        if self.on_take is not None:
            self.on_take(items)
        if self.tap is not None:
            self.tap("take", items)
        return items

    def remove(self, unwanted: Callable[[T], bool]) -> None:
        """Drop every queued item that ``unwanted`` accepts."""
        with self.changed:
            kept = [item for item in self.items if not unwanted(item)]
            self.items.clear()
            self.items.extend(kept)
            self.changed.notify_all()

    def has(self, wanted: Callable[[T], bool]) -> bool:
        """Return whether an item that ``wanted`` accepts is queued."""
        with self.changed:
            return any(map(wanted, self.items))

    def can_read(self) -> bool:
        """Return whether the reader need not wait. Under the lock."""
        return self._closed or (bool(self.items) and not self._held)

    def hold(self, held: bool) -> None:
        """While ``held``, show the reader an empty queue: its outputs cannot be handed on now."""
        if held == self._held:
            return
        with self.changed:
            self._held = held
            self.changed.notify_all()

    def bound(self, most: int | None, drainer: int = 0) -> None:
        """Let :meth:`put` wait while ``most`` items are queued, but in the thread ``drainer``, which takes them; ``None``: no more."""
        with self.changed:
            self._most, self._drainer = most, drainer
            self.changed.notify_all()

    @property
    def is_full(self) -> bool:
        return self._most is not None and len(self.items) >= self._most

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Wake every reader; later puts are dropped, what is queued can still be read."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        if self.on_put is not None:
            self.on_put()


@runtime_checkable
class Scheduler(Protocol):
    """The interface of every scheduler to its stage.

    ``start`` runs the loop in the calling thread (the stage gives it one of its own) and returns after ``stop``.
    ``stop`` and ``abort`` may be called from any thread. ``abort`` is idempotent, drops every state of the request as
    soon as the running step allows, and produces no message for it afterwards.

    Failures are isolated: whatever a compute raises (``SystemExit`` and ``MemoryError`` included) becomes one
    ``error`` message for that request, and the loop goes on.

    A scheduler may also offer ``statistics() -> dict[str, float]``: plain counters, cheap, callable from any thread; and
    ``running_computes() -> dict[str, float]``: the requests of running computes, with the ``time.monotonic()`` of their begin: one
    that takes longer than the stage's ``compute_timeout`` ends the process. Without it, a compute goes on from a look into the inbox
    or a put into the outbox to the next one, unless a reader waits in ``inbox.get``: a scheduler whose reading thread waits
    there while other threads compute must offer it to be noticed; and ``pause(request_id, paused)``, from any thread: put out no more
    ``stream`` of a request while it is paused, because what it has put out waits for a slow reader. Without it, a put into the
    outbox waits; and ``waiting(request_id) -> str``: the inputs
    that a request waits for, as the message of its timeout names them; and ``flush_caches()``, callable from any thread: forget
    what is kept for later requests. Ranks of a tensor parallel stage call it on rank 0 alone: what it changes for them it puts
    into the inbox, as a message without a ``request_id``; and an attribute ``around_turn``, as
    :class:`~omni_core.scheduling.loop.LoopScheduler` has it, by which a profile records its turns; and an attribute ``hold_input``,
    which is set before ``start``: ``hold_input(request_id, True)``, from any thread, lets those who send a request's chunks wait, because
    what was taken of them waits here, until ``hold_input(request_id, False)``; and, where it computes in further
    threads, an attribute ``enter_thread``, which is set before ``start``: what each of them calls first, so that its log records and
    its GPU are those of the stage. The counters then have their ``cpu_seconds``.

    Of a tensor parallel stage, ``inbox`` and ``outbox`` are replaced before ``start``: read both attributes there, not earlier.
    """

    inbox: MessageQueue[IncomingMessage]
    outbox: MessageQueue[OutgoingMessage]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def abort(self, request_id: str) -> None: ...
