"""Stages that misbehave where a request's inputs ask for it; children of the fault tests import this module.

A request asks by ``inputs = {"n": 7, "poison": {"at": "work", "kind": "exception"}}``; without poison it is a bystander, whose
answer depends on ``n`` alone.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import os
import time
from typing import Any

import numpy as np
from attrs import frozen

from omni_core.errors import InvalidRequestError
from omni_core.protocol.codec import register
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage
from omni_core.scheduling.streaming import StreamingScheduler

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Holder:
    tensor: Any


class Mute(Exception):
    """An exception whose ``str`` and ``repr`` raise."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class ExitsInStr(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class InterruptsInRepr(Exception):
    def __str__(self) -> str:
        return ""

    def __repr__(self) -> str:
        raise KeyboardInterrupt


class _Nameless(type):
    @property
    def __name__(cls) -> str:
        raise SystemExit("no name")


class Nameless(Exception, metaclass=_Nameless):
    """An exception whose class has no usable name."""


def broken_syntax_error() -> SyntaxError:
    """An exception whose attributes have types that traceback formatting cannot handle."""
    error = SyntaxError("broken")
    error.lineno, error.offset, error.text, error.filename = "x", [], 5, object()  # type: ignore[assignment]
    return error


@register
@frozen
class Trap:
    """Harmless until it is decoded; ends the decoding process, if the codec calls it."""

    maker: int

    def __attrs_post_init__(self) -> None:
        if self.maker != os.getpid():
            raise SystemExit("a trap")


def poisoned(data: Any, place: str) -> str | None:
    """Return the kind of poison that a payload carries for ``place``."""
    poison = data.get("poison") if isinstance(data, dict) else None
    return poison["kind"] if poison and poison["at"] == place else None


def misbehave(kind: str | None) -> Any:
    """Raise, die, or return what no stage should return; ``None`` for no poison."""
    if kind == "exception":
        raise ValueError("a bad request")
    if kind == "exit":
        raise SystemExit(3)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "memory":
        raise MemoryError("too much")
    if kind == "recursion":
        return misbehave(kind)
    if kind == "mute":
        raise Mute
    if kind == "exits in str":
        raise ExitsInStr
    if kind == "interrupts in repr":
        raise InterruptsInRepr
    if kind == "nameless":
        raise Nameless("still a message")
    if kind == "broken syntax error":
        raise broken_syntax_error()
    if kind == "surrogates":
        raise ValueError("\ud800 cannot be encoded")
    if kind == "invalid":
        raise InvalidRequestError("the stage does not like it")
    if kind == "long":
        raise ValueError("x" * 1_000_000)
    if kind == "trap":
        return {"trap": Trap(os.getpid())}
    if kind == "object":
        return {"deep": [1, {"here": object()}]}
    if kind == "itself":
        loop: list[Any] = []
        loop.append(loop)
        return loop
    if kind == "namedtuple":
        return {"pair": Pair(_zeros(), 1)}
    if kind == "dataclass":
        return {"held": Holder(_zeros())}
    if kind == "unknown class":
        from only_the_sender_knows import Secret

        return {"secret": Secret(1)}
    if kind == "die":
        os._exit(9)
    return None


def _zeros() -> Any:
    import torch

    return torch.zeros(2)


def given(payload: StagePayload) -> dict[str, Any]:
    """Return a stage's input: the request's inputs in the entry stage, the previous stage's output elsewhere."""
    return payload.request.inputs if payload.data is None else payload.data


def wait_for_file(path: str | None) -> None:
    """Wait until a file is there, or do nothing without one."""
    while path is not None and not os.path.exists(path):
        time.sleep(0.005)


class Step:
    """A stage function that passes its input on, adds its name, and misbehaves if asked to.

    Inputs may say ``sleep``, the seconds that it takes in a stage, and ``held``, a file that it waits for there.
    """

    def __init__(self, name: str, seconds: float = 0.0) -> None:
        self.name = name
        self.seconds = seconds

    def __call__(self, payload: StagePayload) -> Any:
        data = given(payload)
        time.sleep(data.get("sleep", {}).get(self.name, self.seconds))
        wait_for_file(data.get("held", {}).get(self.name))
        bad = misbehave(poisoned(data, self.name))
        return {**data, "path": [*data.get("path", []), self.name]} if bad is None else bad


def step(name: str, seconds: float = 0.0) -> Step:
    return Step(name, seconds)


def route(request_id: str, output: StagePayload) -> Any:
    kind = poisoned(output.data, "route_fn")
    misbehave(kind)
    returned = {
        "unknown": "nowhere",
        "empty": [],
        "none": None,
        "number": 3,
        "twice": ["left", "right", "join", "left"],
    }
    return returned.get(kind or "", ["left", "right", "join"])


def project(payload: StagePayload) -> Any:
    kind = poisoned(payload.data, "project_payload")
    bad = misbehave(kind)
    return {**payload.data, "projected": True} if bad is None else bad


def wait_for(request_id: str, source: str, payload: StagePayload) -> Any:
    kind = poisoned(payload.data, "wait_for_fn")
    misbehave(kind)
    return {"unknown": ["nowhere"], "empty": [], "number": 3, "none": None}.get(kind or "", ["work", "left", "right"])


def merge(payloads: dict[str, StagePayload]) -> Any:
    kind = poisoned(payloads["work"].data, "merge_fn")
    bad = misbehave(kind)
    if bad is not None:
        return bad
    return {**payloads["work"].data, "paths": {name: payload.data["path"] for name, payload in payloads.items()}}


def done_to(request_id: str, output: StagePayload) -> Any:
    kind = poisoned(output.data, "stream_done_to_fn")
    misbehave(kind)
    return {"unknown": "nowhere", "none": None, "number": 3}.get(kind or "", ["consume"])


class Produce:
    """Streams the numbers below ``n % 20``, then passes its inputs on."""

    def __init__(self) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            inputs = given(message.data)
            for index in range(inputs["n"] % 20):
                self.outbox.put(OutgoingMessage(message.request_id, "stream", index))
            kind = poisoned(inputs, "produce")
            if kind == "bad target":
                self.outbox.put(OutgoingMessage(message.request_id, "stream", 0, target="nowhere"))
            elif kind is not None:
                self.outbox.put(OutgoingMessage(message.request_id, "stream", misbehave(kind)))
            self.outbox.put(OutgoingMessage(message.request_id, "result", inputs))

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)


class Consume(StreamingScheduler[list[int]]):
    """Sums up the chunks of a stream."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> list[int]:
        return []

    def on_payload(self, state: list[int], payload: StagePayload) -> None:
        misbehave(poisoned(payload.data, "consume"))

    def on_chunk(self, state: list[int], chunk: Any, metadata: dict[str, Any] | None) -> None:
        state.append(chunk)

    def finish(self, request_id: str, state: list[int]) -> Any:
        return {"sum": sum(state)}


def vector(payload: StagePayload) -> dict[str, Any]:
    """A tensor of ``nbytes`` bytes, filled with ``n % 250``."""
    import torch

    inputs = given(payload)
    tensor = torch.full((inputs["nbytes"],), inputs["n"] % 250, dtype=torch.uint8)
    return {"n": inputs["n"], "tensor": tensor, "poison": inputs.get("poison")}


def check_vector(payload: StagePayload) -> dict[str, Any]:
    tensor = payload.data["tensor"]
    assert int(tensor.min()) == int(tensor.max()) == payload.data["n"] % 250
    return {"n": payload.data["n"], "nbytes": tensor.numel()}


def slow_check_vector(payload: StagePayload) -> dict[str, Any]:
    time.sleep(0.02)
    return check_vector(payload)


def limit_files(nbytes: int) -> Any:
    """Makes tensors in a process that may not make files larger than ``nbytes``, as if /dev/shm were full."""
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    return vector


def never_ready() -> Any:
    print("still reading the weights", flush=True)
    import sys

    print("the last thing I said", file=sys.stderr, flush=True)
    time.sleep(600)


def leaves_at_once() -> Any:
    os._exit(0)


def slow_to_build() -> Any:
    time.sleep(0.4)
    return Step("slow")


def vector_that_is_held(payload: StagePayload) -> dict[str, Any]:
    return {**vector(payload), "held": payload.request.inputs.get("held")}


def check_when_let_go(payload: StagePayload) -> dict[str, Any]:
    """Check a vector once the file that its request names is there."""
    wait_for_file(payload.data["held"])
    return check_vector(payload)


_FIRST = {"branching": "work", "streaming": "produce", "tensor": "make"}
_LAST = {"branching": "join", "streaming": "consume", "tensor": "check"}


def route_by_shape(request_id: str, output: StagePayload) -> str:
    return _FIRST[output.data["shape"]]


def last_of_shape(request: OmniRequest) -> list[str]:
    return [_LAST[request.metadata["shape"]]]


class Careless:
    """Raises while it holds a tensor, in a process without garbage collection."""

    def __init__(self) -> None:
        gc.disable()

    def __call__(self, payload: StagePayload) -> Any:
        tensor = payload.data["tensor"]
        misbehave(payload.data["poison"])
        return int(tensor[0])


def careless() -> Careless:
    return Careless()


class Mortal:
    """A scheduler whose own loop ends if a request asks for it: by an exception, or by returning."""

    def __init__(self) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            kind = poisoned(message.data.data, "mortal")
            if kind == "raise":
                raise LookupError("the loop is broken")
            if kind == "return":
                return
            self.outbox.put(OutgoingMessage(message.request_id, "result", message.data.data))

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)


class Torrent:
    """Streams ``chunks`` arrays of ``nbytes`` bytes each, numbered, then passes its inputs on."""

    def __init__(self) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            inputs = given(message.data)
            for index in range(inputs["chunks"]):
                chunk = np.full(inputs["nbytes"], (inputs["n"] + index) % 250, np.uint8)
                self.outbox.put(OutgoingMessage(message.request_id, "stream", chunk))
            self.outbox.put(OutgoingMessage(message.request_id, "result", inputs))

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)


class Hoarder(StreamingScheduler[list[Any]]):
    """Keeps every chunk, as a view, until the stream ends; then checks all of them."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> list[Any]:
        return []

    def on_payload(self, state: list[Any], payload: StagePayload) -> None:
        state.insert(0, payload.data)

    def on_chunk(self, state: list[Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        state.append(chunk)

    def finish(self, request_id: str, state: list[Any]) -> Any:
        (inputs,) = [each for each in state if isinstance(each, dict)]
        chunks = [each for each in state if not isinstance(each, dict)]
        for index, chunk in enumerate(chunks):
            assert chunk.min() == chunk.max() == (inputs["n"] + index) % 250
        return {"n": inputs["n"], "chunks": len(chunks)}


class Ordered:
    """Makes an array for each of ``count`` requests, but only after all have arrived, in order or in reverse."""

    def __init__(self, name: str, last_first: bool) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()
        self._last_first = last_first

    def start(self) -> None:
        waiting: list[IncomingMessage] = []
        while (message := self.inbox.get()) is not None:
            waiting.append(message)
            if len(waiting) < message.data.data["count"]:
                continue
            waiting.sort(key=lambda each: each.data.data["n"], reverse=self._last_first)
            for each in waiting:
                inputs = each.data.data
                made = {"n": inputs["n"], "array": np.full(inputs["nbytes"], inputs["n"], np.uint8)}
                self.outbox.put(OutgoingMessage(each.request_id, "result", made))
            waiting.clear()

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)


def ordered(name: str, last_first: bool) -> Ordered:
    return Ordered(name, last_first)


def side_by_side(payloads: dict[str, StagePayload]) -> dict[str, Any]:
    return {name: payload.data for name, payload in payloads.items()}


def both_arrays(payload: StagePayload) -> dict[str, Any]:
    left, right = payload.data["left"], payload.data["right"]
    assert (left["array"] == right["array"]).all()
    assert left["n"] == right["n"] == left["array"][0]
    return {"n": left["n"]}
