"""Three plain functions that make a pipeline."""

from __future__ import annotations

from omni_core.protocol.messages import StagePayload


def split(payload: StagePayload) -> dict[str, list[str]]:
    return {"words": payload.request.inputs["text"].split()}


def shout(payload: StagePayload) -> dict[str, list[str]]:
    return {"words": [word.upper() for word in payload.data["words"]]}


def join(payload: StagePayload) -> str:
    return " ".join(payload.data["words"]) + "!"


def echo(payload: StagePayload) -> str:
    said: str = payload.request.inputs["messages"][-1]["content"]
    return said
