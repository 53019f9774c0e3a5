"""The requests inside one stage: what has arrived of each, what has been sent, and which have ended lately. No IO."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from attrs import define, field

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.services import ReplyReader
from omni_core.stage.fan_in import FanIn

REMEMBERED_ENDS = 20_000
"""Number of finished or aborted request ids that a stage remembers, to drop what arrives for them late."""

PAYLOAD, DONE = 1, 2

Arrivals = dict[str, tuple[int, Any]]
"""The messages of a request that have come, by source: :data:`PAYLOAD` and :data:`DONE` as bits, and the source's ``handed_to``."""


class Seal(Protocol):
    """The mark of an object that was handed to another stage by reference."""

    def check(self, target: str) -> None:
        """Raise OmniError if the object has changed since it was handed to the stage ``target``."""


@define
class ActiveRequest:
    """One request inside a stage.

    Attributes:
        since: when its first message came, in seconds of the clock.
        request: the request without its inputs, from the first message that carries it.
        fan_in: its payloads so far, in a stage that waits for several.
        payload_from: the stage whose payload the scheduler got, ``""`` for the coordinator; ``None``: it got none yet.
        arrived: what has come from which stage.
        chunks_sent: stream chunks sent so far, by target; ``""`` is the client.
        sending_to: the stage of another process to which a value is being sent.
        held: the readers that take no more chunks now: stages of ``stream_to``, ``""`` is the client.
        holds: the stages that were told to send no more chunks now.
        seals: marks of the objects handed to this stage by reference (a debug mode).
        is_over: it has ended, or has failed in another thread than the event loop's; nothing more of it is handed on.
        error: the name of the error that it failed with.
        taken: chunks of the client's stream that the scheduler has taken, of which the client is not told yet.
        input_is_held: its scheduler wants no more chunks now.
        replies: by source of another part, the reader of its text, where that may call tools.
        is_opened: another part has opened it, and nothing of the stream that is its input has come.
        early: what of that stream has come before; called when the request is opened.
    """

    request_id: str
    since: float
    request: OmniRequest | None = None
    fan_in: FanIn | None = None
    payload_from: str | None = None
    arrived: Arrivals = field(factory=dict)
    chunks_sent: dict[str, int] = field(factory=dict)
    sending_to: str | None = None
    held: set[str] = field(factory=set)
    holds: set[str] = field(factory=set)
    seals: list[Seal] = field(factory=list)
    is_over: bool = False
    error: str = ""
    taken: int = 0
    input_is_held: bool = False
    replies: dict[str, ReplyReader] = field(factory=dict)
    is_opened: bool = False
    early: list[Callable[[], None]] = field(factory=list)

    @property
    def waits_for_payloads(self) -> bool:
        return self.fan_in is not None and not self.fan_in.is_complete

    def note(self, source: str, what: int, handed_to: Any) -> None:
        """Record that ``what`` (:data:`PAYLOAD` or :data:`DONE`) has come from ``source``."""
        seen, before = self.arrived.get(source, (0, None))
        self.arrived[source] = (seen | what, handed_to if handed_to is not None else before)

    def count_chunk(self, target: str) -> int:
        """Count a chunk to ``target``. Returns its number, from 0."""
        number = self.chunks_sent.get(target, 0)
        self.chunks_sent[target] = number + 1
        return number

    def takes_from(self, source: str) -> bool:
        """Return whether the input is what ``source`` streams: the first that does, where another part has opened the request."""
        if self.is_opened:
            self.is_opened, self.payload_from = False, source
        return self.payload_from == source

    def payload(self, value: Any) -> StagePayload:
        """``value`` as a payload of this request, without inputs: those stop at the entry stage."""
        if self.request is None:
            self.request = OmniRequest()
        return StagePayload(self.request_id, self.request, value.data if isinstance(value, StagePayload) else value)

    def waits_for(self, stream_from: list[str], inputs: str = "") -> list[str]:
        """Describe what this stage waits for to finish the request.

        Args:
            stream_from: the stages whose streams it needs.
            inputs: what its scheduler says instead, if it knows.
        """
        missing = self.fan_in.missing if self.fan_in is not None else []
        streams = [name for name in stream_from if not self.arrived.get(name, (0, None))[0] & DONE]
        waits = [f"waits for {name!r}" for name in missing]
        waits += [f"waits for the end of the stream from {repr(name) if name else 'the client'}" for name in streams]
        if inputs:
            return [*waits, f"waits for {inputs}"]
        if self.held:
            names = " and ".join(sorted(repr(name) if name else "the client" for name in self.held))
            return [*waits, f"waits until its chunks are read by {names}"]
        if self.sending_to is not None:
            return [*waits, f"sending to {self.sending_to!r}"]
        return waits if self.waits_for_payloads else [*waits, "has it queued or computes"]


class Requests:
    """The active requests of one stage by id, and what had arrived of those that have ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, remembered_ends: int = REMEMBERED_ENDS) -> None:
        self._clock = clock
        self._active: dict[str, ActiveRequest] = {}
        self._ended: OrderedDict[str, Arrivals] = OrderedDict()
        self._remembered_ends = remembered_ends

    def enter(self, request_id: str) -> ActiveRequest | None:
        """Return the request that a message has come for, new if it is the first; ``None`` if the request has ended."""
        active = self._active.get(request_id)
        if active is None and request_id not in self._ended:
            active = self._active[request_id] = ActiveRequest(request_id, self._clock())
        return active

    def get(self, request_id: str) -> ActiveRequest | None:
        """Return an active request."""
        return self._active.get(request_id)

    def since(self) -> dict[str, float]:
        """Return the active requests whose inputs are not waited for, with the time of each one's first message."""
        return {name: active.since for name, active in self._active.items() if not active.waits_for_payloads}

    def end(self, request_id: str) -> ActiveRequest | None:
        """End a request, known or not. Returns it if it was active."""
        active = self._active.pop(request_id, None)
        if active is not None:
            active.is_over = True
        if request_id not in self._ended:
            self._ended[request_id] = active.arrived if active is not None else {}
            if len(self._ended) > self._remembered_ends:
                self._ended.popitem(last=False)
        return active

    def arrivals(self, request_id: str) -> Arrivals:
        """Return what of a request has come so far, by source; also of one that has lately ended."""
        active = self._active.get(request_id)
        return active.arrived if active is not None else self._ended.get(request_id, {})

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._active))

    def __len__(self) -> int:
        return len(self._active)
