"""Qwen3-Omni as a pipeline config. Light: nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from attrs import evolve, frozen

from omni_core.api import AUTO, WORD_TIMES, Interface, PipelineConfig, StageConfig
from omni_qwen3.interface import OPTIONS, SPEECH_INTERFACE, TEXT_INTERFACE, interface_of
from omni_qwen3.options import Options, TextOptions
from omni_torch.api import DTYPES, check_options, config_folder, device_of, random_checkpoint

_ROUTING = "omni_qwen3.routing"
_THINKER = "omni_qwen3.thinker:ThinkerRunner.from_checkpoint"

LIMITS = (
    *("max_image_pixels", "max_audio_seconds", "max_video_seconds"),
    *("max_request_pixels", "max_request_samples", "max_request_frame_pixels", "max_context"),
)
"""The options that are limits of requests."""


def default_model() -> tuple[str, str]:
    """Return a tiny checkpoint with random weights, and a notice about it."""
    return random_checkpoint("qwen3", "Qwen/Qwen3-Omni-30B-A3B-Instruct")


def qwen3_omni(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """Text, images, audio and video in; text and speech out. ``options``: see :data:`omni_qwen3.interface.OPTIONS`."""
    given = GivenOptions({**options})
    aligner = given.take("aligner")
    after = ["align"] if aligner else []
    stages = [
        *front(given),
        StageConfig(
            name="thinker",
            model_runner=_THINKER,
            factory_args={"speech_enabled": True, **given.network},
            next=["decode", "talker_ar"],
            route_fn=f"{_ROUTING}:route_thinker",
            stream_to=["decode", "talker_ar"],
            stream_done_to_fn=f"{_ROUTING}:route_thinker",
            **given.place("thinker"),
        ),
        decode(given),
        StageConfig(
            name="talker_ar",
            model_runner="omni_qwen3.talker:TalkerRunner.from_checkpoint",
            feedback="omni_qwen3.talker_feedback:TalkerFeedback",
            factory_args={**given.network, **({"tells_text": True} if after else {})},
            next="code2wav",
            stream_to=["code2wav"],
            **given.place("talker_ar"),
        ),
        StageConfig(
            name="code2wav",
            factory="omni_qwen3.code2wav:create_code2wav",
            factory_args={**given.network, **given.take("initial_chunk", "chunk")},
            next=after,
            stream_to=after,
            terminal=not after,
            **given.place("code2wav"),
        ),
    ]
    if not after:
        return given.pipeline(model_path, "qwen3-omni", stages, f"{_ROUTING}:terminal_stages", SPEECH_INTERFACE)
    align = StageConfig(
        name="align",
        factory="omni_transformers.align.stage:create_aligner",
        factory_args=aligner,
        terminal=True,
        **given.place("align", network=False),
    )
    interface = evolve(SPEECH_INTERFACE, word_times=True, params=[*SPEECH_INTERFACE.params, WORD_TIMES])
    return given.pipeline(model_path, "qwen3-omni", [*stages, align], f"{_ROUTING}:aligned_terminal_stages", interface)


def qwen3_omni_text(model_path: str, **options: Unpack[TextOptions]) -> PipelineConfig:
    """The same without speech: no talker and no vocoder are loaded."""
    given = GivenOptions({**options})
    stages = [
        *front(given),
        StageConfig(
            name="thinker",
            model_runner=_THINKER,
            factory_args={"speech_enabled": False, **given.network},
            next="decode",
            stream_to=["decode"],
            **given.place("thinker"),
        ),
        decode(given),
    ]
    return given.pipeline(model_path, "qwen3-omni-text", stages, None, TEXT_INTERFACE)


@frozen
class Distribution:
    """Differences between the models whose pipelines begin with these stages.

    Attributes:
        package: the import package of its stages.
        options: that its pipelines know.
        interface_of: see :func:`omni_qwen3.interface.interface_of`.
        preload: by stage, modules that several stages import, and that are imported once for all.
    """

    package: str
    options: Mapping[str, str]
    interface_of: Callable[[str, Interface, dict[str, Any]], Interface]
    preload: Mapping[str, Sequence[str]] = {}


QWEN3 = Distribution("omni_qwen3", OPTIONS, interface_of)


class GivenOptions:
    """The validated options of a pipeline, and their effect on its stages.

    Raises:
        ConfigError: an unknown option, or a value that it cannot have.
    """

    def __init__(self, options: dict[str, Any], distribution: Distribution = QWEN3) -> None:
        check_options(options, distribution.options, dtype=(AUTO, *DTYPES), processes=("separate", "one"))
        self.distribution, self._options = distribution, options
        self._processes = options.get("processes", "separate")
        self._gpu = device_of(options.get("gpu", AUTO))
        self.network = {} if options.get("dtype", AUTO) == AUTO else self.take("dtype")

    def take(self, *names: str) -> dict[str, Any]:
        """The given options of these names, as factory arguments."""
        return {name: self._options[name] for name in names if name in self._options}

    def place(self, stage: str, *, network: bool = True) -> dict[str, Any]:
        """The process, the device and the shared modules of a stage."""
        place = {
            "process": "pipeline" if self._processes == "one" else stage,
            "preload": list(self.distribution.preload.get(stage, ())),
        }
        return {**place, "gpu": self._gpu} if network else place

    def pipeline(
        self, model_path: str, name: str, stages: list[StageConfig], terminals: str | None, interface: Interface
    ) -> PipelineConfig:
        folder, package = config_folder(model_path), self.distribution.package
        return PipelineConfig(
            model_path=folder if Path(model_path).expanduser().is_dir() else model_path,
            name=name,
            stages=stages,
            terminal_stages_fn=terminals,
            placement_fn=f"{package}.memory:place",
            fetch_fn=f"{package}.memory:fetch",
            interface=self.distribution.interface_of(folder, interface, self.take(*LIMITS)),
        )


def front(given: GivenOptions) -> list[StageConfig]:
    """Return preprocessing, the two encoders, and their fan-in."""
    package = given.distribution.package
    return [
        StageConfig(
            name="preprocessing",
            factory=f"{package}.preprocessing:create_preprocessing",
            factory_args=given.take(*LIMITS),
            next=["image_encoder", "audio_encoder", "mm_aggregate"],
            route_fn=f"{_ROUTING}:route_preprocessing",
            project_payload={
                "image_encoder": f"{_ROUTING}:to_image_encoder",
                "audio_encoder": f"{_ROUTING}:to_audio_encoder",
                "mm_aggregate": f"{_ROUTING}:to_aggregate",
            },
            **given.place("preprocessing", network=False),
        ),
        StageConfig(
            name="image_encoder",
            factory=f"{package}.encoders:create_image_encoder",
            factory_args=given.network,
            next="mm_aggregate",
            **given.place("image_encoder"),
        ),
        StageConfig(
            name="audio_encoder",
            factory=f"{package}.encoders:create_audio_encoder",
            factory_args=given.network,
            next="mm_aggregate",
            **given.place("audio_encoder"),
        ),
        StageConfig(
            name="mm_aggregate",
            factory=f"{package}.aggregate:create_aggregate",
            wait_for=["preprocessing", "image_encoder", "audio_encoder"],
            wait_for_fn=f"{_ROUTING}:wait_for_encoders",
            merge_fn="omni_qwen3.aggregate:merge_for_thinker",
            next="thinker",
            **given.place("mm_aggregate", network=False),
        ),
    ]


def decode(given: GivenOptions) -> StageConfig:
    """Return the stage that makes text of ids."""
    return StageConfig(
        name="decode",
        factory=f"{given.distribution.package}.decode:create_decode",
        terminal=True,
        **given.place("decode", network=False),
    )
