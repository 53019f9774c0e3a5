"""Three pipelines of a plain function each: one judges, one answers, one translates."""

from __future__ import annotations

from typing import Any

from guarded_chat.pipeline import NO_MODEL

from omni_core.api import (
    TEXT,
    Interface,
    Parameter,
    ParameterGroup,
    PipelineConfig,
    StageConfig,
    StagePayload,
    TextResult,
    text_of,
)

LOUD = ParameterGroup("answer", TEXT, "how", [Parameter("loud", "boolean", "in capitals")])


def said(payload: StagePayload) -> str:
    return text_of(payload.request.inputs["messages"][-1])


def judge(payload: StagePayload) -> TextResult:
    return TextResult("unsafe\nS9" if "bomb" in said(payload) else "safe")


def answer(payload: StagePayload) -> TextResult:
    text = f"You said: {said(payload)}"
    return TextResult(text.upper() if payload.request.params.get("answer", {}).get("loud") else text)


def reverse(payload: StagePayload) -> TextResult:
    return TextResult(said(payload)[::-1])


def part(name: str, **fields: Any) -> PipelineConfig:
    stage = StageConfig(name="all", process="all", factory=f"{__name__}:{name}", terminal=True)
    offer = Interface(roles={TEXT: "all"}, inputs=["text"], outputs=["text"], **fields)
    return PipelineConfig(model_path=NO_MODEL, name=name, stages=[stage], interface=offer)
