"""Registers the pipelines ``demo`` and ``demo-image``."""

from __future__ import annotations

from omni_core.api import PipelineComponent, hookimpl
from omni_demo.image.interface import INTERFACE
from omni_demo.image.interface import OPTIONS as IMAGE_OPTIONS
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
        ),
        PipelineComponent(
            "demo-image",
            "omni_demo.image.pipeline:demo_image",
            "A small model that draws coloured shapes by instruction (pip install 'omni-demo[image]')",
            options=IMAGE_OPTIONS,
            interface=INTERFACE,
            default_model="omni_demo.image.pipeline:default_model",
            requires=("diffusers", "omni_diffusion"),
        ),
    ]
