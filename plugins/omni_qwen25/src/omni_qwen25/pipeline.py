"""Qwen2.5-Omni as a pipeline config. Light: nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.interface import Interface
from omni_qwen25.interface import OPTIONS, SPEECH_INTERFACE, TEXT_INTERFACE, interface_of
from omni_qwen25.options import Options
from omni_torch.hub import config_folder, download
from omni_torch.pipeline_options import DTYPES, check_options

_ROUTING, _FAN_IN = "omni_qwen25.routing", "omni_qwen3.routing"

_LIMITS = ("max_image_pixels", "max_audio_seconds", "max_video_seconds", "max_context")

FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "spk_dict.pt")
"""The checkpoint files that are read, and downloaded."""


def qwen25_omni(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """Text, images, audio and video in; text and speech out. ``options``: see :data:`omni_qwen25.interface.OPTIONS`.

    Raises:
        ConfigError: an unknown option, or a value that it cannot have.
    """
    given = _Options({**options})
    stages = [
        *_front(given),
        _thinker(given, speaks=True),
        _decode(given),
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
            next="mel2wav",
            **given.place("code2mel"),
        ),
        StageConfig(
            name="mel2wav", factory="omni_qwen25.mel2wav:create_mel2wav", terminal=True, **given.place("mel2wav")
        ),
    ]
    return given.pipeline(model_path, "qwen25", stages, f"{_ROUTING}:terminal_stages", SPEECH_INTERFACE)


def qwen25_omni_text(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """The same without speech: no talker and no token2wav are loaded."""
    given = _Options({**options})
    stages = [*_front(given), _thinker(given, speaks=False), _decode(given)]
    return given.pipeline(model_path, "qwen25-text", stages, None, TEXT_INTERFACE)


def fetch(model: str) -> str:
    """Download the checkpoint; return its folder."""
    return download(model, FILES)


class _Options:
    """The validated options of a pipeline, and their effect on its stages."""

    def __init__(self, options: dict[str, Any]) -> None:
        check_options(options, OPTIONS, dtype=DTYPES, processes=("separate", "one"))
        self._options = options
        self._separate = options.get("processes", "separate") == "separate"
        self.network = self.take("dtype")

    def take(self, *names: str) -> dict[str, Any]:
        """Return the given options of these names, as factory arguments."""
        return {name: self._options[name] for name in names if name in self._options}

    def place(self, stage: str, *, network: bool = True) -> dict[str, Any]:
        """Return the process and the device of a stage."""
        process = {"process": stage if self._separate else "pipeline"}
        return {**process, "gpu": self._options.get("gpu")} if network else process

    def pipeline(
        self, model_path: str, name: str, stages: list[StageConfig], terminals: str | None, interface: Interface
    ) -> PipelineConfig:
        folder = config_folder(model_path)
        return PipelineConfig(
            model_path=folder if Path(model_path).expanduser().is_dir() else model_path,
            name=name,
            stages=stages,
            terminal_stages_fn=terminals,
            fetch_fn="omni_qwen25.pipeline:fetch",
            interface=interface_of(folder, interface, self.take(*_LIMITS)),
        )


def _front(given: _Options) -> list[StageConfig]:
    """Preprocessing, the two encoders, and their fan-in."""
    return [
        StageConfig(
            name="preprocessing",
            factory="omni_qwen25.preprocessing:create_preprocessing",
            factory_args=given.take(*_LIMITS),
            next=["image_encoder", "audio_encoder", "mm_aggregate"],
            route_fn=f"{_FAN_IN}:route_preprocessing",
            project_payload={
                "image_encoder": f"{_FAN_IN}:to_image_encoder",
                "audio_encoder": f"{_FAN_IN}:to_audio_encoder",
                "mm_aggregate": f"{_FAN_IN}:to_aggregate",
            },
            **given.place("preprocessing", network=False),
        ),
        StageConfig(
            name="image_encoder",
            factory="omni_qwen25.encoders:create_image_encoder",
            factory_args=given.network,
            next="mm_aggregate",
            **given.place("image_encoder"),
        ),
        StageConfig(
            name="audio_encoder",
            factory="omni_qwen25.encoders:create_audio_encoder",
            factory_args=given.network,
            next="mm_aggregate",
            **given.place("audio_encoder"),
        ),
        StageConfig(
            name="mm_aggregate",
            factory="omni_qwen25.aggregate:create_aggregate",
            wait_for=["preprocessing", "image_encoder", "audio_encoder"],
            wait_for_fn=f"{_FAN_IN}:wait_for_encoders",
            merge_fn="omni_qwen3.aggregate:merge_for_thinker",
            next="thinker",
            **given.place("mm_aggregate", network=False),
        ),
    ]


def _thinker(given: _Options, *, speaks: bool) -> StageConfig:
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


def _decode(given: _Options) -> StageConfig:
    return StageConfig(
        name="decode", factory="omni_qwen25.decode:create_decode", terminal=True, **given.place("decode", network=False)
    )
