"""A toy that speaks: a tenth of a second of a tone for each word, with the times of the words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.interface import SPEECH, Interface
from omni_core.protocol.messages import StagePayload
from omni_core.protocol.outputs import AudioChunk, AudioResult, Word

RATE = 8000


def say(payload: StagePayload) -> Iterator[AudioChunk]:
    """Stream a piece per word."""
    pieces: list[AudioChunk] = []
    for number, text in enumerate(payload.request.inputs["messages"][-1]["content"].split()):
        word = Word(text, number / 10, (number + 1) / 10)
        pieces.append(AudioChunk(np.full(RATE // 10, 0.5, np.float32), RATE, word.start, [word]))
        yield pieces[-1]
    samples = np.concatenate([np.zeros(0, np.float32), *(each.samples for each in pieces)])
    return AudioResult(samples, RATE, words=[word for each in pieces for word in each.words])


def speaker(sample_rate: int = RATE) -> PipelineConfig:
    """The pipeline, in one process."""
    stage = StageConfig(name="say", process="p", factory="speaker:say", terminal=True)
    interface = Interface(
        roles={SPEECH: "say"}, inputs=["text"], outputs=["audio"], sample_rate=sample_rate, word_times=True
    )
    return PipelineConfig(model_path="none", name="speaker", stages=[stage], interface=interface)
