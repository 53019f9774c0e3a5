"""Registers Kokoro. Imports no torch."""

from __future__ import annotations

from omni_core.api import PipelineComponent, hookimpl
from omni_kokoro.interface import INTERFACE, OPTIONS


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    return [
        PipelineComponent(
            "kokoro",
            "omni_kokoro.pipeline:kokoro",
            "Kokoro-82M: text to speech, faster than one listens on a CPU",
            options=OPTIONS,
            interface=INTERFACE,
            interface_from="omni_kokoro.checkpoint:interface",
            fallback="omni_kokoro.checkpoint:refusal",
            config_folder_fn="omni_torch.api:config_folder",
            default_model="omni_kokoro.pipeline:default_model",
            conformance="omni_testing.ours.kokoro:SpeechConformance",
        )
    ]
