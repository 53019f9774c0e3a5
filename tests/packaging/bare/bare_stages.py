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


def reply(payload: StagePayload) -> str:
    (part,) = payload.request.inputs["messages"][-1]["content"]
    text: str = part["text"].upper()
    return text


class Prefixed:
    """A stage with an argument."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __call__(self, payload: StagePayload) -> str:
        (part,) = payload.request.inputs["messages"][-1]["content"]
        text: str = part["text"]
        return self.prefix + text
