"""Registers the pipeline of transformers' models, the command that lists them, and the kind of component that adds one."""

from __future__ import annotations

from omni_core.api import CommandComponent, Component, PipelineComponent, hookimpl
from omni_transformers.hooks import omni_transformers_adapters as omni_transformers_adapters
from omni_transformers.options import OPTIONS


@hookimpl
def omni_pipelines() -> list[Component]:
    return [
        PipelineComponent(
            "transformers",
            "omni_transformers.pipeline:transformers",
            "any model of transformers that listens, speaks, sees or writes",
            options=OPTIONS,
            fallback="omni_transformers.checkpoints:refusal",
            files=(".gguf",),
            interface_from="omni_transformers.pipeline:interface",
            config_folder_fn="omni_torch.api:config_folder",
        )
    ]


@hookimpl
def omni_commands() -> list[Component]:
    return [
        CommandComponent(
            "models",
            "omni_transformers.commands:models",
            "List the models of transformers that run here, or check one.",
            section="Prepare",
        )
    ]
