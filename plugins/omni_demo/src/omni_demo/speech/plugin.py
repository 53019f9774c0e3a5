"""Registers the pipeline ``demo``: Qwen3-Omni's, with the checkpoint that this distribution carries."""

from __future__ import annotations

from omni_core.hookspecs import PipelineComponent, hookimpl
from omni_qwen3.interface import OPTIONS, SPEECH_INTERFACE, without_tools


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    return [
        PipelineComponent(
            "demo",
            "omni_demo.speech.pipeline:demo",
            "A small talking model with a fixed set of answers: text, images, audio in; text and speech out",
            options=OPTIONS,
            default_model="omni_demo.speech.pipeline:default_model",
            interface=without_tools(SPEECH_INTERFACE),
        )
    ]
