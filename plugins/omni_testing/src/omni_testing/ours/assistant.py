"""Conformance suite of the assistant, with parts that do nothing: what it is made of are other pipelines, with suites of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import evolve

from omni_assistant.pipeline import NO_MODEL, assistant
from omni_core.api import (
    SPEECH,
    TEXT,
    TRANSCRIPTION,
    AudioResult,
    Interface,
    OmniRequest,
    PipelineConfig,
    StageConfig,
    StagePayload,
    StreamingScheduler,
    TextResult,
    Transcript,
)
from omni_testing import PipelineStructureConformance

RATE = 24_000


class AssistantConformance(PipelineStructureConformance):
    """Tests of its structure, which need no request."""

    def config(self) -> PipelineConfig:
        parts = {
            "asr": _part(hear.__name__, TRANSCRIPTION, Interface(inputs=["audio"], outputs=["text"])),
            "llm": _part(write.__name__, TEXT, Interface(inputs=["text"], outputs=["text"])),
            "tts": _part(Say.__name__, SPEECH, Interface(inputs=["text"], input_streams=["text"], outputs=["audio"])),
        }
        return assistant(NO_MODEL, **parts)


def _part(target: str, role: str, offer: Interface) -> PipelineConfig:
    stage = StageConfig(name="all", process="all", factory=f"{__name__}:{target}", terminal=True)
    rate = RATE if role == SPEECH else None
    return PipelineConfig(
        model_path=NO_MODEL, name=role, stages=[stage], interface=evolve(offer, roles={role: "all"}, sample_rate=rate)
    )


def hear(payload: StagePayload) -> Transcript:
    """Hear nothing."""
    return Transcript("")


def write(payload: StagePayload) -> TextResult:
    """Write nothing."""
    return TextResult("")


class Say(StreamingScheduler[None]):
    """Says nothing."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> None:
        pass

    def on_chunk(self, state: None, chunk: Any, metadata: dict[str, Any] | None) -> None:
        pass

    def finish(self, request_id: str, state: None) -> AudioResult:
        return AudioResult(np.zeros(0, np.float32), RATE)
