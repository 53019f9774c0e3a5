"""The pipeline: a door that gets the requests, a guard, a chat, and perhaps a translator, composed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from omni_core.api import (
    ConfigError,
    Edge,
    Interface,
    InvalidRequestError,
    PipelineConfig,
    StageConfig,
    StagePayload,
    compose,
    pipeline_of,
    text_of,
)

NO_MODEL = "none"
HERE = "guarded_chat.pipeline"


def no_model() -> tuple[str, str]:
    """Return what stands for a model."""
    return NO_MODEL, "The models are those of the parts."


def guarded_chat(
    model_path: str,
    guard: str | PipelineConfig | None = None,
    chat: str | PipelineConfig | None = None,
    translator: str | PipelineConfig | None = None,
) -> PipelineConfig:
    """Return the pipeline. ``guard``, ``chat``, ``translator``: what ``omni run`` takes, or configs.

    Raises:
        ConfigError: there is no guard, or no chat, or one of them does not exist.
    """
    parts = {"guard": guard, "chat": chat, **({"translator": translator} if translator else {})}
    configs = {name: _part(name, each) for name, each in parts.items()}
    takes = configs["chat"].interface
    door = PipelineConfig(
        model_path=NO_MODEL,
        name="door",
        stages=[StageConfig(name="door", process="door", factory=f"{HERE}:hand_on", terminal=True)],
        interface=Interface(inputs=takes.inputs if takes is not None else ["text"]),
    )
    edges = [
        Edge("door", "guard", f"{HERE}:question"),
        Edge("door", "chat"),
        Edge("guard", "chat", f"{HERE}:verdict"),
    ]
    if translator:
        edges.append(Edge("chat", "translator", f"{HERE}:translation"))
    whole = compose({"door": door, **configs}, edges, name="guarded-chat")
    entry = whole.stage(f"chat-{configs['chat'].resolved_entry_stage}")
    sources = [each.name for each in whole.stages if entry.name in each.next_stages]
    waiting = evolve(entry, wait_for=sources, merge_fn=f"{HERE}:allowed")
    return evolve(whole, stages=[waiting if each.name == entry.name else each for each in whole.stages])


def _part(name: str, source: str | PipelineConfig | None) -> PipelineConfig:
    if not source:
        raise ConfigError(f"--option {name}: name a folder, a hub id or an installed pipeline")
    return pipeline_of(source)


def hand_on(payload: StagePayload) -> Any:
    """Hand on the inputs of the request, in the door."""
    return payload.request.inputs


def question(payload: StagePayload) -> dict[str, Any]:
    """Return what the guard is asked: the last message, as text."""
    return {"messages": [{"role": "user", "content": text_of(payload.data["messages"][-1])}]}


def verdict(payload: StagePayload) -> str:
    """Return what the guard has said."""
    return str(payload.data.text).strip()


def allowed(payloads: Mapping[str, StagePayload]) -> StagePayload:
    """Return the inputs of the chat, once the guard has let them pass.

    Raises:
        InvalidRequestError: it has not.
    """
    [said] = [each.data for each in payloads.values() if isinstance(each.data, str)]
    if said.casefold().startswith("unsafe"):
        raise InvalidRequestError(f"messages: the guard does not let this pass: {said}")
    return next(each for each in payloads.values() if not isinstance(each.data, str))


def translation(payload: StagePayload) -> dict[str, Any]:
    """Return what the translator is asked: the answer."""
    return {"messages": [{"role": "user", "content": payload.data.text}]}
