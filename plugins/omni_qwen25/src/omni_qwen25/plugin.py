"""Registers Qwen2.5-Omni: two pipelines and its parts by name."""

from __future__ import annotations

from omni_core.api import Component, PipelineComponent, ServiceComponent, hookimpl
from omni_qwen25.interface import ARCHITECTURES, OPTIONS, SPEECH_INTERFACE, TEXT_INTERFACE

_SUITES = "omni_testing.ours.qwen25"
_DEFAULT = "omni_qwen25.pipeline:default_model"


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    return [
        PipelineComponent(
            "qwen25",
            "omni_qwen25.pipeline:qwen25_omni",
            "Qwen2.5-Omni: text, images, audio, video in; text and speech out",
            options=OPTIONS,
            default_model=_DEFAULT,
            architectures=ARCHITECTURES,
            interface=SPEECH_INTERFACE,
            config_folder_fn="omni_torch.checkpoints.hub:config_folder",
            presets="omni_qwen25:presets",
            conformance=f"{_SUITES}:SpeechConformance",
        ),
        PipelineComponent(
            "qwen25-text",
            "omni_qwen25.pipeline:qwen25_omni_text",
            "Qwen2.5-Omni without speech: text out only",
            options=OPTIONS,
            default_model=_DEFAULT,
            interface=TEXT_INTERFACE,
            conformance=f"{_SUITES}:TextConformance",
        ),
    ]


@hookimpl
def omni_model_runners() -> list[Component]:
    return [
        Component(
            "qwen25-thinker",
            "omni_qwen25.thinker:ThinkerRunner.from_checkpoint",
            "the thinker, with encoder features",
            conformance=f"{_SUITES}:ThinkerConformance",
        ),
        Component(
            "qwen25-talker",
            "omni_qwen25.talker:TalkerRunner.from_checkpoint",
            "the talker, fed by the thinker's stream",
            conformance=f"{_SUITES}:TalkerConformance",
        ),
    ]


@hookimpl
def omni_feedback_strategies() -> list[Component]:
    return [
        Component(
            "qwen25-talker",
            "omni_qwen25.talker:TalkerFeedback",
            "the last code plus the next row of text",
            conformance=f"{_SUITES}:TalkerFeedbackConformance",
        )
    ]


@hookimpl
def omni_services() -> list[ServiceComponent]:
    about = "keys of other systems' deploy files"
    return [
        ServiceComponent("qwen25", "omni_qwen25.interface:IMPORTS", about, slot="imports"),
        ServiceComponent("qwen25-text", "omni_qwen25.interface:TEXT_IMPORTS", about, slot="imports"),
    ]
