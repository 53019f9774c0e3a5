"""Registers Qwen-Image: its pipeline and a command."""

from __future__ import annotations

from omni_core.hookspecs import Component, PipelineComponent, hookimpl
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
            default_model="omni_testing.tiny.qwen_image:default_model",
        )
    ]


@hookimpl
def omni_commands() -> list[Component]:
    return [Component("qwen-image", "omni_diffusion.qwen_image.commands:qwen_image", "Qwen-Image checkpoints")]
