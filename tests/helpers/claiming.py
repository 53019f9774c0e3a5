"""A toy pipeline whose voices and rate come from a checkpoint's config, and which claims every checkpoint that speaks."""

from __future__ import annotations

import json
from pathlib import Path

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.hookspecs import PipelineComponent
from omni_core.interface import SPEECH, VOICE, Interface, Parameter


def voices(folder: str) -> Interface:
    """Return the interface of a checkpoint."""
    config = json.loads((Path(folder) / "config.json").read_text())
    names = sorted(config["voices"])
    return Interface(
        roles={SPEECH: "say"},
        inputs=["text"],
        outputs=["audio"],
        metadata=[Parameter(VOICE, "string", "the voice", choices=names)],
        limits={"characters": config.get("max_position_embeddings", 100)},
        voices=names,
        sample_rate=config["sampling_rate"],
    )


def speaks(folder: str) -> str | None:
    """Claim what has voices."""
    config = json.loads((Path(folder) / "config.json").read_text())
    return None if isinstance(config, dict) and "voices" in config else "it has no voices"


def pipeline(model_path: str) -> PipelineConfig:
    stage = StageConfig(name="say", process="p", factory="m:f", terminal=True)
    return PipelineConfig(model_path=model_path, stages=[stage])


COMPONENT = PipelineComponent(
    "speaker", "claiming:pipeline", "speaks", interface_from="claiming:voices", fallback="claiming:speaks"
)
CONFIG = {"architectures": ["ToyForSpeech"], "voices": ["bo", "ann"], "sampling_rate": 16_000}
