"""Registers Qwen3-Omni: two pipelines and its parts by name."""

from __future__ import annotations

from omni_core.api import Component, PipelineComponent, ServiceComponent, hookimpl
from omni_qwen3.interface import ARCHITECTURES, OPTIONS, SPEECH_INTERFACE, TEXT_INTERFACE

_SUITES = "omni_testing.ours.qwen3"


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    default = "omni_qwen3.pipeline:default_model"
    return [
        PipelineComponent(
            "qwen3-omni",
            "omni_qwen3.pipeline:qwen3_omni",
            "Qwen3-Omni: text, images, audio, video in; text and speech out",
            options=OPTIONS,
            default_model=default,
            architectures=ARCHITECTURES,
            interface=SPEECH_INTERFACE,
            config_folder_fn="omni_torch.checkpoints.hub:config_folder",
            presets="omni_qwen3:presets",
            conformance=f"{_SUITES}:SpeechConformance",
        ),
        PipelineComponent(
            "qwen3-omni-text",
            "omni_qwen3.pipeline:qwen3_omni_text",
            "Qwen3-Omni without speech: text out only",
            options={name: text for name, text in OPTIONS.items() if "chunk" not in name and name != "aligner"},
            default_model=default,
            interface=TEXT_INTERFACE,
            conformance=f"{_SUITES}:TextConformance",
        ),
    ]


@hookimpl
def omni_model_runners() -> list[Component]:
    return [
        Component(
            "qwen3-omni-thinker",
            "omni_qwen3.thinker:ThinkerRunner.from_checkpoint",
            "the thinker, with encoder features",
            conformance=f"{_SUITES}:ThinkerConformance",
        ),
        Component(
            "qwen3-omni-talker",
            "omni_qwen3.talker:TalkerRunner.from_checkpoint",
            "the talker, fed by the thinker's stream",
            conformance=f"{_SUITES}:TalkerConformance",
        ),
    ]


@hookimpl
def omni_feedback_strategies() -> list[Component]:
    return [
        Component(
            "qwen3-omni-talker",
            "omni_qwen3.talker_feedback:TalkerFeedback",
            "residual codes by the code predictor",
            conformance=f"{_SUITES}:TalkerFeedbackConformance",
        )
    ]


@hookimpl
def omni_payload_projections() -> list[Component]:
    return [
        _projection("to-image-encoder", "routing:to_image_encoder", "patches of images and videos", "ToImageEncoder"),
        _projection("to-audio-encoder", "routing:to_audio_encoder", "log-mel features", "ToAudioEncoder"),
        _projection("to-aggregate", "routing:to_aggregate", "the prompt without the encoders' inputs", "ToAggregate"),
        _projection("merge", "aggregate:merge_for_thinker", "prompt and encoder features, merged", "Merge"),
    ]


def _projection(name: str, target: str, summary: str, suite: str) -> Component:
    conformance = f"{_SUITES}:{suite}Conformance"
    return Component(f"qwen3-omni.{name}", f"omni_qwen3.{target}", summary, conformance=conformance)


@hookimpl
def omni_services() -> list[ServiceComponent]:
    about = "keys of other systems' deploy files"
    return [
        ServiceComponent("qwen3-omni", "omni_qwen3.interface:IMPORTS", about, slot="imports"),
        ServiceComponent("qwen3-omni-text", "omni_qwen3.interface:TEXT_IMPORTS", about, slot="imports"),
    ]
