"""Qwen2.5-Omni as a pipeline config. Light: nothing here imports torch."""

from __future__ import annotations

from typing import Any, Unpack

from omni_core.api import PipelineConfig, StageConfig
from omni_qwen3.pipeline import Distribution, GivenOptions, decode, front
from omni_qwen25.interface import OPTIONS, SPEECH_INTERFACE, TEXT_INTERFACE, interface_of
from omni_qwen25.options import Options
from omni_torch.api import random_checkpoint

_ROUTING = "omni_qwen25.routing"
_SOUND = {"dtype": "float32"}
"""Token2wav computes in float32, as in the reference."""

_LIBRARY = ["transformers.models.qwen2_5_omni.modeling_qwen2_5_omni"]
"""Most of the time of a start, in each of the stages that import it."""

QWEN25 = Distribution(
    "omni_qwen25",
    OPTIONS,
    interface_of,
    preload=dict.fromkeys(("image_encoder", "audio_encoder", "code2mel", "mel2wav"), _LIBRARY),
)


def default_model() -> tuple[str, str]:
    """Return a tiny checkpoint with random weights, and a notice about it."""
    return random_checkpoint("qwen25", "Qwen/Qwen2.5-Omni-7B")


def qwen25_omni(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """Text, images, audio and video in; text and speech out. ``options``: see :data:`omni_qwen25.interface.OPTIONS`.

    Raises:
        ConfigError: an unknown option, or a value that it cannot have.
    """
    given = GivenOptions({**options}, QWEN25)
    stages = [
        *front(given),
        _thinker(given, speaks=True),
        decode(given),
        StageConfig(
            name="talker",
            model_runner="omni_qwen25.talker:TalkerRunner.from_checkpoint",
            feedback="omni_qwen25.talker:TalkerFeedback",
            factory_args=given.network,
            next="code2mel",
            **given.place("talker"),
        ),
        StageConfig(
            name="code2mel",
            factory="omni_qwen25.code2mel:create_code2mel",
            factory_args=_SOUND,
            next="mel2wav",
            **given.place("code2mel"),
        ),
        StageConfig(
            name="mel2wav",
            factory="omni_qwen25.mel2wav:create_mel2wav",
            factory_args=_SOUND,
            terminal=True,
            **given.place("mel2wav"),
        ),
    ]
    return given.pipeline(model_path, "qwen25", stages, f"{_ROUTING}:terminal_stages", SPEECH_INTERFACE)


def qwen25_omni_text(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """The same without speech: no talker and no token2wav are loaded."""
    given = GivenOptions({**options}, QWEN25)
    stages = [*front(given), _thinker(given, speaks=False), decode(given)]
    return given.pipeline(model_path, "qwen25-text", stages, None, TEXT_INTERFACE)


def _thinker(given: GivenOptions, *, speaks: bool) -> StageConfig:
    parts: dict[str, Any] = {"next": "decode", "stream_to": ["decode"]}
    if speaks:
        parts = {
            "next": ["decode", "talker"],
            "route_fn": f"{_ROUTING}:route_thinker",
            "stream_to": ["decode", "talker"],
            "stream_done_to_fn": f"{_ROUTING}:route_thinker",
        }
    return StageConfig(
        name="thinker",
        model_runner="omni_qwen25.thinker:ThinkerRunner.from_checkpoint",
        factory_args={"speech_enabled": speaks, **given.network},
        **parts,
        **given.place("thinker"),
    )
