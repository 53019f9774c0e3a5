"""Registers Qwen-Image: its pipeline."""

from __future__ import annotations

from omni_core.api import PipelineComponent, hookimpl
from omni_diffusion.qwen_image.interface import INTERFACE, OPTIONS


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    return [
        PipelineComponent(
            "qwen-image",
            "omni_diffusion.qwen_image.pipeline:qwen_image",
            "Qwen-Image: images from text, images edited by instruction",
            options=OPTIONS,
            interface=INTERFACE,
            default_model="omni_diffusion.qwen_image.pipeline:default_model",
        )
    ]
