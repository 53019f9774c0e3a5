"""A pipeline of three stages with the roles of a model that speaks, for conversions: a reader, a talker and a vocoder. Nothing runs it."""

from __future__ import annotations

from typing import Any

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.hookspecs import Component, PipelineComponent, ServiceComponent
from omni_core.interface import SPEECH, TEXT, VOCODER, Interface, Parameter, ParameterGroup
from omni_core.plugins import PluginRegistry
from omni_core.plugins.discovery import PluginRecord

SAMPLING = [
    Parameter("temperature", "number", "", 0.0, minimum=0, maximum=2),
    Parameter("top_k", "integer", "", 0, minimum=0),
    Parameter("max_new_tokens", "integer", "", 16, minimum=1),
    Parameter("seed", "integer", "", minimum=0),
]

INTERFACE = Interface(
    roles={TEXT: "reader", SPEECH: "talker", VOCODER: "sound"},
    inputs=["text"],
    outputs=["text", "audio"],
    groups=[
        ParameterGroup("reader", TEXT, "", [*SAMPLING, Parameter("ignore_eos", "boolean", "", False)]),
        ParameterGroup("talker", SPEECH, "", SAMPLING),
    ],
)

IMPORTS = {
    "pipeline": "speaker_text SpeakerPipelineConfig",
    "codec_chunk_frames": "sound.factory_args.chunk",
    "codec_streaming: true": "codes are always streamed",
    "codec_secret": "it is not told here",
    "stages.tts_engine": "talker",
}


def create_reader(
    model_path: str,
    max_running: int = 8,
    max_batch_tokens: int = 64,
    max_context: int = 128,
    chunk_size: int = 16,
    block_size: int = 16,
    kv_cache_mb: int | None = None,
    prefix_cache: bool = True,
    cuda_graphs: bool | None = None,
    dtype: str = "float32",
    expert_parallel: bool = False,
    tp_rank: int = 0,
) -> Any:
    """A stage that can be split."""


def create_dense(model_path: str, tp_rank: int = 0) -> Any:
    """A stage that can be split, without experts."""


def create_talker(model_path: str, max_running: int = 8, max_context: int = 128, dtype: str = "float32") -> Any:
    """A stage that cannot."""


def create_sound(model_path: str, chunk: int = 20, max_running: int | None = None) -> Any:
    """A stage without a KV cache."""


def pipeline(model_path: str) -> PipelineConfig:
    """The pipeline; the reader's results pass a stage that other systems do not number."""
    here = "example_pipeline"
    stages = [
        StageConfig(
            name="reader",
            factory=f"{here}:create_reader",
            next=["decode", "talker"],
            route_fn=f"{here}:pipeline",
            stream_to=["talker"],
            process="reader",
        ),
        StageConfig(name="decode", factory=f"{here}:create_sound", terminal=True, process="decode"),
        StageConfig(
            name="talker", factory=f"{here}:create_talker", next="sound", stream_to=["sound"], process="talker"
        ),
        StageConfig(name="sound", factory=f"{here}:create_sound", terminal=True, process="sound"),
    ]
    return PipelineConfig(model_path=model_path, name="speaker", stages=stages)


def model() -> tuple[str, str]:
    return "none", ""


def silent(model_path: str) -> PipelineConfig:
    """Two stages that do not stream to each other."""
    here = "example_pipeline"
    stages = [
        StageConfig(name="reader", factory=f"{here}:create_dense", next="sound", process="reader"),
        StageConfig(name="sound", factory=f"{here}:create_sound", terminal=True, process="sound"),
    ]
    interface = Interface(roles={TEXT: "reader", VOCODER: "sound"})
    return PipelineConfig(model_path=model_path, name="silent", stages=stages, interface=interface)


def registry() -> PluginRegistry:
    """The registry of a machine with these pipelines and three relays."""
    shared: dict[str, Any] = {"default_model": "example_pipeline:model"}
    pipelines = [
        PipelineComponent(
            "speaker",
            "example_pipeline:pipeline",
            "",
            architectures=("SpeakerModel", "speaker"),
            interface=INTERFACE,
            **shared,
        ),
        PipelineComponent("silent", "example_pipeline:silent", "", **shared),
    ]
    relays = [Component(name, "example_pipeline:model", "") for name in ("shm", "nixl", "mooncake")]
    imports = ServiceComponent("speaker", "example_pipeline:IMPORTS", "", slot="imports")
    components: dict[str, Any] = {"omni_pipelines": pipelines, "omni_relays": relays, "omni_services": [imports]}
    return PluginRegistry([PluginRecord("example", "omni-example", "1.0", "example_pipeline", components=components)])
