"""Registers Qwen3-TTS: its pipeline and its parts by name."""

from __future__ import annotations

from omni_core.api import Component, PipelineComponent, hookimpl
from omni_qwen3_tts.interface import ARCHITECTURES, INTERFACE, OPTIONS

_SUITES = "omni_testing.ours.qwen3_tts"


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    return [
        PipelineComponent(
            "qwen3-tts",
            "omni_qwen3_tts.pipeline:qwen3_tts",
            "Qwen3-TTS: text to speech in named, described and recorded voices",
            options=OPTIONS,
            architectures=ARCHITECTURES,
            interface=INTERFACE,
            config_folder_fn="omni_torch.checkpoints.hub:config_folder",
            default_model="omni_qwen3_tts.pipeline:default_model",
            conformance=f"{_SUITES}:SpeechConformance",
        )
    ]


@hookimpl
def omni_model_runners() -> list[Component]:
    return [
        Component(
            "qwen3-tts-talker",
            "omni_qwen3_tts.talker:TalkerRunner.from_checkpoint",
            "text and voices to frames of codes",
            conformance=f"{_SUITES}:TalkerConformance",
        )
    ]


@hookimpl
def omni_feedback_strategies() -> list[Component]:
    return [
        Component(
            "qwen3-tts-frames",
            "omni_qwen3_tts.feedback:TalkerFeedback",
            "residual codes by the code predictor",
            conformance=f"{_SUITES}:TalkerFeedbackConformance",
        )
    ]
