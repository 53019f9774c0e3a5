"""Registers Qwen3-Omni: two pipelines, a command, and its parts by name."""

from __future__ import annotations

from omni_core.hookspecs import Component, PipelineComponent, hookimpl
from omni_qwen3.pipeline import OPTIONS

supports = (1, 1)


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    default = "omni_qwen3.tiny_checkpoint:default_model"
    return [
        PipelineComponent(
            "qwen3-omni",
            "omni_qwen3.pipeline:qwen3_omni",
            "Qwen3-Omni: text, images, audio, video in; text and speech out",
            options=OPTIONS,
            default_model=default,
        ),
        PipelineComponent(
            "qwen3-omni-text",
            "omni_qwen3.pipeline:qwen3_omni_text",
            "Qwen3-Omni without speech: text out only",
            options={name: text for name, text in OPTIONS.items() if "chunk" not in name},
            default_model=default,
        ),
    ]


@hookimpl
def omni_model_runners() -> list[Component]:
    return [
        Component("qwen3-omni-thinker", "omni_qwen3.thinker:ThinkerRunner", "the thinker, with encoder features"),
        Component("qwen3-omni-talker", "omni_qwen3.talker:TalkerRunner", "the talker, fed by the thinker's stream"),
    ]


@hookimpl
def omni_feedback_strategies() -> list[Component]:
    return [Component("qwen3-omni-talker", "omni_qwen3.talker:TalkerFeedback", "residual codes by the code predictor")]


@hookimpl
def omni_payload_projections() -> list[Component]:
    routing = "omni_qwen3.routing"
    return [
        Component("qwen3-omni.to-image-encoder", f"{routing}:to_image_encoder", "patches of images and videos"),
        Component("qwen3-omni.to-audio-encoder", f"{routing}:to_audio_encoder", "log-mel features"),
        Component("qwen3-omni.to-aggregate", f"{routing}:to_aggregate", "the prompt without the encoders' inputs"),
        Component("qwen3-omni.merge", "omni_qwen3.aggregate:merge_for_thinker", "prompt and encoder features, merged"),
    ]


@hookimpl
def omni_commands() -> list[Component]:
    return [Component("qwen3", "omni_qwen3.commands:qwen3", "Qwen3-Omni checkpoints")]
