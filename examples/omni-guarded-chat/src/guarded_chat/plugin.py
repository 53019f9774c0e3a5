"""Registers the pipeline. Light: its module is imported only where a config is made, or a stage runs."""

from __future__ import annotations

from omni_core.api import PipelineComponent, hookimpl

_SOURCE = "a folder, a hub id, or the name of an installed pipeline"


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    return [
        PipelineComponent(
            "guarded-chat",
            "guarded_chat.pipeline:guarded_chat",
            "a guard before any pipeline, and a translator behind it",
            options={
                "guard": f"says safe or unsafe: {_SOURCE}",
                "chat": f"answers: {_SOURCE}",
                "translator": f"translates the answer; by default it stays as it is: {_SOURCE}",
            },
            default_model="guarded_chat.pipeline:no_model",
        )
    ]
