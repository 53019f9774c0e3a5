"""Stages of the feature tests; children import this module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.streaming import StreamingScheduler

_kept: dict[str, Any] = {}


class Settings:
    """Reports the arguments of its factory, and the environment."""

    def __init__(self, **given: Any) -> None:
        self.given = given

    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        names = ("OMNI_TEST_DEFAULT", "OMNI_TEST_GIVEN")
        return {"given": self.given, "env": {name: os.environ.get(name) for name in names}, "name": "settings"}


def settings(size: int = 1, nested: dict[str, Any] | None = None, name: str = "") -> Settings:
    return Settings(size=size, nested=nested)


def keep(payload: StagePayload) -> Any:
    """Passes an object on and remembers it."""
    _kept[payload.request_id] = data = {"list": [1], "inputs": payload.request.inputs}
    return data


def compare(payload: StagePayload) -> dict[str, Any]:
    """Report whether the object received is the one that was passed on, or shares its values."""
    kept = _kept[payload.request_id]
    return {"same": payload.data is kept, "shares": payload.data["list"] is kept["list"], "pid": os.getpid()}


def pass_on(payload: StagePayload) -> Any:
    return payload.data if payload.data is not None else payload.request.inputs


def make_list(payload: StagePayload) -> Any:
    return {"values": [1, 2, 3]}


def change(payload: StagePayload) -> Any:
    payload.data["values"].append(4)
    return payload.data["values"]


def merge(payloads: dict[str, StagePayload]) -> dict[str, Any]:
    return {name: payload.data for name, payload in payloads.items()}


def route_to(request_id: str, output: StagePayload) -> list[str]:
    return list(output.data["to"])


def letters(payload: StagePayload) -> Iterator[str]:
    """A generator stage: streams the letters of a word, and returns the word."""
    word = payload.request.inputs["word"]
    yield from word
    if word == "bad":
        raise SystemExit("no such word")
    return word.upper()  # type: ignore[return-value]


def sizes(payloads: list[StagePayload]) -> list[dict[str, int]]:
    """A batch function: how many requests it got at once."""
    return [{"n": payload.request.inputs["n"], "batch": len(payloads)} for payload in payloads]


class Gather(StreamingScheduler[list[Any]]):
    """Collects the chunks of its sources."""

    def __init__(self, sources: list[str] | None = None) -> None:
        super().__init__(tuple(sources or ()))

    def new_state(self, request_id: str, request: OmniRequest | None) -> list[Any]:
        return []

    def on_chunk(self, state: list[Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        state.append(chunk)

    def finish(self, request_id: str, state: list[Any]) -> list[Any]:
        return state
