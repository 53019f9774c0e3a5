"""Registers the pipeline ``demo-image``."""

from __future__ import annotations

from omni_core.hookspecs import PipelineComponent, hookimpl
from omni_demo.image.interface import INTERFACE, OPTIONS


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    return [
        PipelineComponent(
            "demo-image",
            "omni_demo.image.pipeline:demo_image",
            "A small model that draws coloured shapes by instruction",
            options=OPTIONS,
            interface=INTERFACE,
            default_model="omni_demo.image.pipeline:default_model",
        )
    ]
