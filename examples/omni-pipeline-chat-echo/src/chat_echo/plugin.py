"""Registers the pipeline and its parts. Light: their modules are imported only in the processes that use them."""

from __future__ import annotations

from omni_core.api import Component, PipelineComponent, hookimpl


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    return [
        PipelineComponent(
            "chat-echo",
            "chat_echo.pipeline:chat_echo",
            "says back what it hears",
            options={"pause": "seconds between two words (0.02)"},
            default_model="chat_echo.pipeline:no_model",
        )
    ]


@hookimpl
def omni_schedulers() -> list[Component]:
    return [Component("chat-echo.turns", "chat_echo.pipeline:TakeTurns", "one word of every request in turn")]


@hookimpl
def omni_payload_projections() -> list[Component]:
    return [Component("chat-echo.words", "chat_echo.pipeline:words_only", "the words without their ending")]
