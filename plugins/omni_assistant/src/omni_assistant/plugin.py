"""Registers the pipeline."""

from __future__ import annotations

from omni_core.api import Component, Interface, PipelineComponent, hookimpl

_SOURCE = "a hub id, a folder, a GGUF file, or the name of an installed pipeline"


@hookimpl
def omni_pipelines() -> list[Component]:
    return [
        PipelineComponent(
            "assistant",
            "omni_assistant.pipeline:assistant",
            "a recogniser, a language model and a voice of your choice as one, to talk to",
            options={
                "asr": f"the recogniser: {_SOURCE}",
                "llm": f"the language model: {_SOURCE}",
                "tts": f"the voice, which speaks a text while it is written: {_SOURCE}",
                "asr_NAME": "an option of the recogniser, such as asr_backend; asr_model: the checkpoint of a named pipeline",
                "llm_NAME": "likewise of the language model",
                "tts_NAME": "likewise of the voice",
            },
            interface=Interface(inputs=["text", "audio"], outputs=["transcript", "text", "audio", "speech"]),
            default_model="omni_assistant.pipeline:no_model",
            conformance="omni_testing.ours.assistant:AssistantConformance",
        )
    ]
