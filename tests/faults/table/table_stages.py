"""A pipeline with a place for every kind of a stage's code; children of the fault table import this module."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen
from pipelines import make_pipeline
from table_poison import KINDS, act

from omni_core.config.schema import PipelineConfig, RestartConfig, StageConfig
from omni_core.coordinator.replicas import expected_work, least_busy
from omni_core.protocol.codec import register
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import OutgoingMessage
from omni_core.scheduling.loop import LoopScheduler
from omni_core.scheduling.streaming import StreamingScheduler
from omni_torch.loop.steps import StepScheduler

Data = dict[str, Any]
STAGE_OF = {each: each for each in ("function", "generator", "batch", "own", "engine")}
STAGE_OF |= {"turn": "own", "expand": "parts", "encode": "entry", "decode": "parcel", "sip": "source"}
STAGE_OF |= dict.fromkeys(("begin", "key", "step", "is_done", "progress", "finish"), "steps")
STAGE_OF |= {"route": "hop", "projection": "hop", "wait_for": "join", "merge": "join"}
"""The stage of every place."""
IN_PARENT = ("terminal_stages", "balance", "work_fn")
"""Places whose failure names no stage."""


def terminal(place: str) -> str:
    stage = STAGE_OF.get(place, "function")
    return {"hop": "end", "entry": "parcel", "source": "sip"}.get(stage, stage)


@register
@frozen(slots=False)
class Parcel:
    """Acts when it is encoded, or when another process has decoded it."""

    place: str
    kind: str
    maker: int

    def __attrs_post_init__(self) -> None:
        if self.place == "decode" and self.maker != os.getpid():
            KINDS[self.kind]()

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        return KINDS[value]() if name == "kind" and self.place == "encode" else value


def enter(payload: StagePayload) -> Data:
    data: Data = payload.request.inputs
    where, kind = data.get("poison") or ("", "")
    return {**data, "parcel": Parcel(where, kind, os.getpid())} if where in ("encode", "decode") else data


def by_place(request_id: str, output: StagePayload) -> list[str]:
    stage = STAGE_OF.get(output.data["place"], "function")
    return {"join": ["join", "side"], "entry": ["parcel"]}.get(stage, [stage])


def chunk(data: Data) -> Any:
    return np.full(data["nbytes"], data["n"] % 250, np.uint8) if "nbytes" in data else data["n"]


def function(payload: StagePayload) -> Any:
    data: Data = payload.data
    time.sleep(data.get("seconds", 0))
    return act(data, "function", {"n": data["n"]})


def generator(payload: StagePayload) -> Iterator[Any]:
    data: Data = payload.data
    for _ in range(data.get("chunks", 2)):
        yield act(data, "generator", chunk(data))
    return {"n": data["n"]}


def batch(payloads: list[StagePayload]) -> list[Any]:
    return [act(each.data, "batch", {"n": each.data["n"]}) for each in payloads]


def given(payload: StagePayload) -> Any:
    return {**payload.data, "made": chunk(payload.data)}


def answer(payload: StagePayload) -> Any:
    n, made = payload.data["n"], np.asarray(payload.data.get("made", payload.data["n"]))
    return {"n": n} if made.min() == made.max() == (n % 250 if made.ndim else n) else {"n": "not what was made"}


class Steps(StepScheduler[Data]):
    """Two steps for each request."""

    def begin(self, payload: StagePayload) -> Any:
        return act(payload.data, "begin", {**payload.data, "left": 2})

    def key(self, state: Data) -> Any:
        return act(state, "key", 0)

    def step(self, states: list[Data]) -> Any:
        bad = [each for each in (act(state, "step") for state in states) if each is not None]
        return bad[0] if bad else [{**each, "left": each["left"] - 1} for each in states]

    def is_done(self, state: Data) -> Any:
        return act(state, "is_done", state["left"] == 0)

    def progress(self, state: Data) -> Any:
        return act(state, "progress", state["n"])

    def finish(self, state: Data) -> Any:
        return act(state, "finish", {"n": state["n"]})


class Own(LoopScheduler):
    """A loop of one's own, which contains what ``own`` raises; what ``turn`` raises ends its process, by contract."""

    def turn(self) -> bool:
        message = self.inbox.get()
        if message is None:
            return False
        if message.request_id:
            act(message.data.data, "turn")
            try:
                result = act(message.data.data, "own", {"n": message.data.data["n"]})
                self.put_out(OutgoingMessage(message.request_id, "result", result))
            except BaseException as error:
                self.put_out(OutgoingMessage(message.request_id, "error", error))
        self.drop_aborted()
        return True


class Sip(StreamingScheduler[list[Any]]):
    """Takes 0.2 s for each chunk."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> list[Any]:
        return []

    def on_chunk(self, state: list[Any], chunk: Any, metadata: Data | None) -> None:
        time.sleep(0.2)

    def finish(self, request_id: str, state: list[Any]) -> Any:
        return {"n": 0}


def hook(place: str, data: Callable[..., Data], usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a config that acts at ``place``."""
    return lambda *given: act(data(*given), place, usual(*given))


route = hook("route", lambda _, output: output.data, lambda *_: "end")
project = hook("projection", attrgetter("data"), attrgetter("data"))
wait_for = hook("wait_for", lambda _, source, payload: payload.data, lambda *_: ["entry", "side"])
merge = hook("merge", lambda payloads: payloads["entry"].data, lambda payloads: payloads["side"].data)
expand = hook("expand", attrgetter("data"), lambda payload: {"a": payload, "b": payload})
terminals = hook("terminal_stages", attrgetter("inputs"), lambda request: [terminal(request.inputs["place"])])
balance = hook("balance", lambda request, _: request.inputs, least_busy)
work = hook("work_fn", attrgetter("inputs"), expected_work)

HERE = "table_stages:"
STAGES: dict[str, Data] = {
    "entry": {"factory": "enter", "route_fn": f"{HERE}by_place"},
    "batch": {"factory_args": {"batch_size": 8}},
    "steps": {"factory": "Steps"},
    "own": {"factory": "Own"},
    "hop": {
        "factory": "given",
        "next": ["end"],
        "route_fn": f"{HERE}route",
        "project_payload": {"end": f"{HERE}project"},
    },
    "end": {"factory": "answer"},
    "side": {"factory": "given", "next": "join"},
    "join": {"factory": "answer", "wait_for": ["entry", "side"]},
    "parts": {"factory": "answer", "expand_fn": f"{HERE}expand"},
    "parcel": {"factory": "answer"},
    "source": {"factory": "generator", "next": "sip", "stream_to": ["sip"], "relay": {"slot_size_mb": 8}},
    "sip": {"factory": "Sip"},
}
STAGES["join"] |= {"wait_for_fn": f"{HERE}wait_for", "merge_fn": f"{HERE}merge"}


def places(folder: Path, names: str, process: str = "", **fields: Any) -> PipelineConfig:
    """Return a pipeline of the entry and the named stages, apart or in one ``process``. Fields of one stage are given by its name."""
    stages = []
    for name in ["entry", *names.split()]:
        stage = {"factory": name, "process": process or name, **STAGES.get(name, {}), **fields.pop(name, {})}
        stage["factory"] = HERE + stage["factory"] if stage["factory"] else None
        following = {"next": [each for each in names.split() if each not in ("end", "sip")]} if name == "entry" else {}
        stages.append(
            StageConfig(name=name, **{"terminal": "next" not in stage and not following, **following, **stage})
        )
    restart = {"restart": RestartConfig(limit=10**6, backoff=0.05, backoff_limit=0.2)}
    return make_pipeline(folder, *stages, terminal_stages_fn=f"{HERE}terminals", **{**restart, **fields})
