"""Registers Fish S2: its pipeline and its parts by name."""

from __future__ import annotations

from omni_core.api import Component, PipelineComponent, ServiceComponent, hookimpl
from omni_fish_s2.interface import ARCHITECTURES, INTERFACE, OPTIONS


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    return [
        PipelineComponent(
            "fish-s2",
            "omni_fish_s2.pipeline:fish_s2",
            "Fish Audio S2-Pro: text to speech with the voice of a recording",
            options=OPTIONS,
            architectures=ARCHITECTURES,
            interface=INTERFACE,
            config_folder_fn="omni_torch.checkpoints.hub:config_folder",
            presets="omni_fish_s2:presets",
            default_model="omni_fish_s2.pipeline:default_model",
            conformance="omni_testing.ours.fish_s2:SpeechConformance",
        )
    ]


@hookimpl
def omni_model_runners() -> list[Component]:
    return [
        Component(
            "fish-s2-semantic",
            "omni_fish_s2.semantic:SpeechRunner.from_checkpoint",
            "text and voices to frames of codes",
        )
    ]


@hookimpl
def omni_feedback_strategies() -> list[Component]:
    return [
        Component("fish-s2-frames", "omni_fish_s2.frame_feedback:FrameFeedback", "residual codes by the fast decoder")
    ]


@hookimpl
def omni_services() -> list[ServiceComponent]:
    about = "keys of other systems' deploy files"
    return [ServiceComponent("fish-s2", "omni_fish_s2.interface:IMPORTS", about, slot="imports")]
