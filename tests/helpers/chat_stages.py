"""Stages of a small chat: one reads the messages, one writes words, one makes sound; what is said in a message decides what happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.errors import InvalidRequestError
from omni_core.interface import TEXT, VOCODER, VOICE, Interface, Parameter, ParameterGroup
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import AudioResult, TextChunk, TextResult

RATE = 8000

INTERFACE = Interface(
    roles={TEXT: "write", VOCODER: "say"},
    inputs=["text", "image", "audio", "video"],
    outputs=["text", "audio"],
    groups=[ParameterGroup("write", TEXT, "how it writes", [Parameter("temperature", "number", "heat", minimum=0)])],
    metadata=[Parameter(VOICE, "string", "the voice", choices=["anna", "bert"])],
    sample_rate=RATE,
)


def chat_pipeline(folder: Path, **fields: Any) -> PipelineConfig:
    """The pipeline, all in one process."""
    stages = [
        StageConfig(
            name="read", process="all", factory="chat_stages:read", next=["write", "say"], route_fn="chat_stages:route"
        ),
        StageConfig(name="write", process="all", factory="chat_stages:write", terminal=True),
        StageConfig(name="say", process="all", factory="chat_stages:say", terminal=True),
    ]
    return PipelineConfig(
        model_path="none",
        name="chat",
        stages=stages,
        terminal_stages_fn="chat_stages:terminals",
        interface=fields.pop("interface", INTERFACE),
        endpoints=EndpointsConfig(str(folder)),
        **fields,
    )


def terminals(request: OmniRequest) -> list[str]:
    wanted = request.modalities or ["text", "audio"]
    return [stage for stage, *kinds in (("write", "text"), ("say", "audio", "speech")) if {*kinds} & {*wanted}]


def route(request_id: str, payload: StagePayload) -> list[str]:
    return terminals(payload.request)


def read(payload: StagePayload) -> list[str]:
    """Return the words that are to be said: those of the last message, or what media there are."""
    content = payload.request.inputs["messages"][-1]["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    words: list[str] = []
    for part in parts:
        words += part["text"].split() if part["type"] == "text" else [part["type"], *(set(part) - {"type"})]
    if "fail" in words:
        raise ValueError("the stage failed")
    if "refuse" in words:
        raise InvalidRequestError("messages[0].content[0].image: not an image")
    return words


def write(payload: StagePayload) -> Iterator[TextChunk]:
    for word in payload.data:
        if word == "wait":
            time.sleep(0.02)
        yield TextChunk(f"{word} ")
    usage = {"prompt_tokens": 3, "completion_tokens": len(payload.data)}
    return TextResult(" ".join(payload.data), usage=usage, notices=["a notice"])


def say(payload: StagePayload) -> AudioResult:
    return AudioResult(np.full(RATE // 4, 0.5, np.float32), RATE)
