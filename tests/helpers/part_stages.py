"""Three small pipelines, each complete by itself: one hears, one answers, one speaks; what they share in names is on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from attrs import evolve

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.interface import TEXT, VOCODER, VOICE, Interface, Parameter, ParameterGroup
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import AudioChunk, AudioResult, TextChunk, TextResult
from omni_core.scheduling.streaming import StreamingScheduler

RATE = 100
LOUD = Parameter("loud", "boolean", "in capitals")


def _pipeline(name: str, stages: list[StageConfig], interface: Interface, **fields: Any) -> PipelineConfig:
    return PipelineConfig(model_path=f"model of {name}", name=name, stages=stages, interface=interface, **fields)


def _stage(name: str, target: str, **fields: Any) -> StageConfig:
    return StageConfig(name=name, process="one", factory=f"part_stages:{target}", **fields)


# The recogniser: a sample is a word, a stage checks, another one writes.
def ears() -> PipelineConfig:
    interface = Interface(
        roles={TEXT: "write"},
        inputs=["audio"],
        input_streams=["audio"],
        outputs=["text"],
        groups=[ParameterGroup("write", TEXT, "how it writes", [LOUD])],
    )
    stages = [_stage("read", "Hear", next="write"), _stage("write", "write", terminal=True)]
    return _pipeline("ears", stages, interface)


class Hear(StreamingScheduler[dict[str, Any]]):
    """Collects the samples of a request that came whole or as a stream."""

    def __init__(self, model_path: str, stage_name: str) -> None:
        super().__init__()
        assert (model_path, stage_name) == ("model of ears", "read")

    def new_state(self, request_id: str, request: OmniRequest | None) -> dict[str, Any]:
        return {"samples": []}

    def on_payload(self, state: dict[str, Any], payload: StagePayload) -> None:
        state["samples"] += (payload.request.inputs or {}).get("samples", [])

    def on_chunk(self, state: dict[str, Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        state["samples"] += list(chunk.samples)

    def finish(self, request_id: str, state: dict[str, Any]) -> Any:
        return [f"w{sample:.0f}" for sample in state["samples"]]


def write(payload: StagePayload) -> TextResult:
    text = " ".join(payload.data)
    return TextResult(text.upper() if payload.request.params.get("write", {}).get("loud") else text)


# The language model: it routes, waits, merges and streams to a stage by the names that it knows.
def mind() -> PipelineConfig:
    interface = Interface(
        roles={TEXT: "decode"},
        inputs=["text"],
        outputs=["text"],
        groups=[ParameterGroup("write", TEXT, "how it answers", [LOUD])],
        metadata=[Parameter("language", "string", "of the answer")],
    )
    stages = [
        _stage("read", "prompt", next=["length", "think"], route_fn="part_stages:both"),
        _stage("length", "length", next="think"),
        _stage(
            "think",
            "think",
            wait_for=["read", "length"],
            wait_for_fn="part_stages:waits",
            merge_fn="part_stages:merge",
            next="decode",
            stream_to=["decode"],
            stream_done_to_fn="part_stages:to_decode",
            project_payload={"decode": "part_stages:short"},
        ),
        _stage("decode", "Decode", terminal=True),
    ]
    return _pipeline("mind", stages, interface)


def prompt(payload: StagePayload) -> str:
    return str(payload.request.inputs["messages"][-1]["content"])


def both(request_id: str, payload: StagePayload) -> list[str]:
    return ["length", "think"]


def length(payload: StagePayload) -> int:
    return len(payload.data.split())


def waits(request_id: str, source: str, payload: StagePayload) -> list[str] | None:
    return ["read", "length"] if source == "read" else None


def merge(payloads: dict[str, StagePayload]) -> StagePayload:
    data = {"text": payloads["read"].data, "length": payloads["length"].data}
    return StagePayload(payloads["read"].request_id, payloads["read"].request, data)


def to_decode(request_id: str, payload: StagePayload) -> list[str]:
    return ["decode"]


def short(payload: StagePayload) -> int:
    return len(payload.data)


def think(payload: StagePayload) -> Iterator[str]:
    loud = payload.request.params.get("write", {}).get("loud")
    language = payload.request.metadata.get("language", "")
    words = [f"{payload.data['length']}:", *payload.data["text"].split(), *([language] if language else [])]
    for word in words:
        yield word.upper() if loud else word
    return words


class Decode(StreamingScheduler[dict[str, Any]]):
    """Streams text made of the words of ``think``, for which it waits by name."""

    def __init__(self) -> None:
        super().__init__(("think",))

    def new_state(self, request_id: str, request: OmniRequest | None) -> dict[str, Any]:
        return {"id": request_id, "text": ""}

    def on_chunk(self, state: dict[str, Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        state["text"] += f"{chunk} "
        self.emit(state["id"], TextChunk(f"{chunk} "))

    def finish(self, request_id: str, state: dict[str, Any]) -> TextResult:
        return TextResult(state["text"])


# The voice: it speaks a text while it is written.
def voice() -> PipelineConfig:
    interface = Interface(
        roles={VOCODER: "say"},
        inputs=["text"],
        input_streams=["text"],
        outputs=["audio"],
        metadata=[Parameter(VOICE, "string", "the voice"), Parameter("language", "string", "of the speech")],
        voices=["high", "low"],
        sample_rate=RATE,
    )
    return _pipeline("voice", [_stage("say", "Say", terminal=True)], interface)


class Say(StreamingScheduler[dict[str, Any]]):
    """Makes a sample of every word: 1.0 for ``high``, else 0.5; 0.25 more in another language."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> dict[str, Any]:
        metadata = request.metadata if request is not None else {}
        level = (1.0 if metadata.get(VOICE) == "high" else 0.5) - (0.25 if "language" in metadata else 0)
        return {"id": request_id, "level": level, "samples": 0, "order": []}

    def on_payload(self, state: dict[str, Any], payload: StagePayload) -> None:
        assert not state["samples"], "the request comes before its chunks"
        if payload.request.inputs is not None:
            self._say(state, payload.request.inputs["text"])

    def on_chunk(self, state: dict[str, Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        self._say(state, chunk.text)

    def _say(self, state: dict[str, Any], text: str) -> None:
        words = len(text.split())
        state["samples"] += words
        self.emit(state["id"], AudioChunk(np.full(words, state["level"], np.float32), RATE))

    def finish(self, request_id: str, state: dict[str, Any]) -> AudioResult:
        return AudioResult(np.full(state["samples"], state["level"], np.float32), RATE)


def each_word(payload: StagePayload) -> dict[str, StagePayload] | None:
    """An expand_fn."""
    words = (payload.request.inputs or {}).get("text", "").split()
    made = {each: evolve(payload.request, inputs={"text": each}) for each in words}
    return {word: StagePayload(payload.request_id, request) for word, request in made.items()} or None


# What the author of the whole writes.
def to_messages(payload: StagePayload) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": payload.data.text}]}


def to_text(payload: StagePayload) -> dict[str, Any]:
    return {"text": payload.data.text}
