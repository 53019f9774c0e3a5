"""The computations of the stages of a world, and the functions of its pipelines. A request's plan says what it does where."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy
from attrs import define, field

from omni_core.api import IncomingMessage, InvalidRequestError, MessageQueue, OmniRequest, OutgoingMessage, StagePayload

NAMES = ("s0", "s1", "s2", "s3", "s4")


@define
class Plan:
    """The course of one request.

    Attributes:
        number: of the plan; requests with the same number have the same content.
        routes: by stage, the stages that get its result.
        stages: those that it reaches, in order.
        inputs: by stage, the stages whose payloads it gets.
        streams: by stage, those whose chunks it gets; ``""`` is the client.
        chunks: by stage, chunks that it puts out; of ``""``, those that the client sends while the request runs.
        seconds: by stage, the time that it computes.
        kills: by stage, the exit code with which it ends the process.
        fails: by stage, what it raises.
        hangs: the stage where it never ends.
        balance: what the choice of a replica raises.
        padding: bytes in every payload, which travel by the relay.
        terminals: the terminal stages that it reaches.
    """

    number: int
    routes: dict[str, list[str]]
    stages: list[str]
    inputs: dict[str, list[str]]
    streams: dict[str, list[str]]
    terminals: list[str]
    chunks: dict[str, int] = field(factory=dict)
    seconds: dict[str, float] = field(factory=dict)
    kills: dict[str, int] = field(factory=dict)
    fails: dict[str, str] = field(factory=dict)
    hangs: str = ""
    padding: int = 0
    balance: str = ""

    def value(self, stage: str) -> str:
        """Return what the stage computes of this request."""
        sources = self.inputs[stage]
        taken = "+".join(map(self.value, sources)) if sources else f"in{self.number}"
        heard = "".join(f"{source}*{self.chunks.get(source, 0)}" for source in self.streams[stage])
        return f"{stage}({taken}{heard})"


def plan_of(request: OmniRequest) -> Plan:
    """Return the plan of a request, in whatever process of its world."""
    loop: Any = asyncio.get_running_loop()
    plan: Plan = loop.process.world.plans[request.metadata["plan"]]
    return plan


def route(request_id: str, payload: StagePayload) -> list[str]:
    return plan_of(payload.request).routes[payload.data["at"]]


def stream_done_to(request_id: str, payload: StagePayload) -> list[str]:
    plan, here = plan_of(payload.request), payload.data["at"]
    return [name for name in plan.routes[here] if here in plan.streams[name]]


def merge(payloads: dict[str, StagePayload]) -> StagePayload:
    first = next(iter(payloads.values()))
    return StagePayload(
        first.request_id, first.request, {"value": "+".join(p.data["value"] for p in payloads.values())}
    )


def _wait_for(here: str, request_id: str, source: str, payload: StagePayload) -> list[str] | None:
    """The subset, which only some of the sources know."""
    plan = plan_of(payload.request)
    known = (plan.number + len(source)) % 2 or source == plan.inputs[here][-1]
    return plan.inputs[here] if known else None


WAIT_FOR = SimpleNamespace(**{name: partial(_wait_for, name) for name in NAMES})


def terminals(request: OmniRequest) -> list[str]:
    return plan_of(request).terminals


@define(eq=False)
class Work:
    """One request inside a scheduler."""

    request_id: str
    request: Any = None
    payload: Any = None
    heard: dict[str, int] = field(factory=dict)
    done: set[str] = field(factory=set)
    sent: int = 0
    since: float = 0.0
    is_running: bool = False


class Compute:
    """A scheduler without a thread: it computes several requests at once, each in steps of simulated time.

    Args:
        stage_name: of the stage.
        width: requests that it computes at once.
        pace: seconds that it takes to read a message.
    """

    def __init__(self, stage_name: str, width: int, pace: float) -> None:
        loop: Any = asyncio.get_running_loop()
        self._loop = loop
        self._process = loop.process
        self._world = self._process.world
        self._name = stage_name
        self._width = width
        self._pace = pace
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue(self._wake)
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()
        self._works: dict[str, Work] = {}
        self._waiting: deque[Work] = deque()
        self._running: dict[str, Work] = {}
        self._ended: set[str] = set()
        self._paused: set[str] = set()
        self._is_woken = False

    def start(self) -> None:
        """Nothing: the inbox calls."""

    def stop(self) -> None:
        """Nothing."""

    def pause(self, request_id: str, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(request_id)

    def running_computes(self) -> dict[str, float]:
        now = time.monotonic()
        return {name: now - (self._loop.time() - work.since) for name, work in self._running.items()}

    @property
    def held(self) -> set[str]:
        """The requests that it holds or computes."""
        return {*self._works, *self._running}

    def abort(self, request_id: str) -> None:
        self._ended.add(request_id)
        self._paused.discard(request_id)
        work = self._works.pop(request_id, None)
        if work is None:
            return
        if work in self._waiting:
            self._waiting.remove(work)
        elif work.is_running and plan_of(work.request).hangs != self._name:  # else its compute goes on
            del self._running[request_id]
            self._next()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        self._is_woken = False
        for message in self.inbox.drain(1 if self._pace else None):
            self._on(message)
        if len(self.inbox):  # it is held, or slow
            self._is_woken = True
            self._loop.call_later(self._pace or 0.005, self._take)

    def _on(self, message: IncomingMessage) -> None:
        name = message.request_id
        if name in self._ended:
            return
        work = self._works.get(name)
        if work is None:
            work = self._works[name] = Work(name)
        work.request = work.request or message.request
        if message.type == "new_request":
            work.payload = message.data
        elif message.type == "stream_chunk":
            number = work.heard.get(message.source or "", 0)
            if message.data["number"] != number:
                got = message.data["number"]
                self._world.broken(f"{self._name} got chunk {got} of {name} from {message.source}, {number} was due")
            work.heard[message.source or ""] = number + 1
            if message.source is None:
                self._world.heard[name.partition("~")[0]] = number + 1
        else:
            work.done.add(message.source or "")
        if work.payload is None or work.is_running:
            return
        if work.done >= set(plan_of(work.request).streams[self._name]):
            self._waiting.append(work)
            work.is_running = True
            self._next()

    def _next(self) -> None:
        while self._waiting and len(self._running) < self._width:
            work = self._waiting.popleft()
            work.since = self._loop.time()
            self._running[work.request_id] = work
            plan = plan_of(work.request)
            self._later(work, plan.seconds.get(self._name, 0.0) / (1 + plan.chunks.get(self._name, 0)))

    def _later(self, work: Work, seconds: float) -> None:
        self._loop.call_later(seconds, self._step, work)

    def _step(self, work: Work) -> None:
        """Compute the next part of a request."""
        plan, here = plan_of(work.request), self._name
        if self._running.get(work.request_id) is not work or plan.hangs == here:
            return
        if self.outbox.is_full or work.request_id in self._paused:
            self._later(work, 0.01)
            return
        if here in plan.kills and work.sent * 2 >= plan.chunks.get(here, 0):
            self._process.die(plan.kills[here], poison=work.request.metadata["plan"])
            return
        if here in plan.fails and work.sent * 2 >= plan.chunks.get(here, 0):
            kind = ValueError if plan.number % 4 == 0 else InvalidRequestError  # of which no traceback is written
            self._put(work, "error", kind(plan.fails[here]))
            return
        if work.sent < plan.chunks.get(here, 0):
            data = {"number": work.sent, "at": here, "pad": self._pad(plan)}
            targets = [name for name in plan.routes.get(here, ()) if here in plan.streams[name]]
            everywhere: list[str | None] = [None] if here in plan.terminals else []
            for target in targets or everywhere:
                self._put(work, "stream", data, target)
            work.sent += 1
            self._later(work, plan.seconds.get(here, 0.0) / (1 + plan.chunks[here]))
            return
        sources = plan.inputs[here]
        taken = work.payload.data["value"] if sources else work.payload.request.inputs
        heard = "".join(f"{source}*{work.heard.get(source, 0)}" for source in plan.streams[here])
        self._put(work, "result", {"value": f"{here}({taken}{heard})", "at": here, "pad": self._pad(plan)})

    @staticmethod
    def _pad(plan: Plan) -> Any:
        return numpy.zeros(plan.padding, numpy.uint8) if plan.padding else None

    def _put(self, work: Work, kind: Any, data: Any, target: str | None = None) -> None:
        if kind != "stream":
            self._works.pop(work.request_id)
            self._running.pop(work.request_id)
            self._ended.add(work.request_id)
        self.outbox.put(OutgoingMessage(work.request_id, kind, data, target))
        if kind != "stream":
            self._next()
