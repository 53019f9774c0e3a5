"""Registers the pipeline and its model runner. Light: their modules are imported only in the processes that use them."""

from __future__ import annotations

from omni_core.api import Component, PipelineComponent, hookimpl
from sketch.interface import INTERFACE, OPTIONS


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    return [
        PipelineComponent(
            "sketch",
            "sketch.pipeline:sketch",
            "images by a network that attends to what another has read",
            options=OPTIONS,
            interface=INTERFACE,
            default_model="sketch.checkpoint:default_model",
        )
    ]


@hookimpl
def omni_model_runners() -> list[Component]:
    return [Component("sketch-reader", "sketch.reader:create_reader", "reads, and hands keys and values on")]
