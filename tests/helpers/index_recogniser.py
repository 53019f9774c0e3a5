"""A recogniser that answers which samples it hears: each sample of its recordings is its own number."""

from __future__ import annotations

import io
import os
import time
import wave
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from attrs import evolve

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import InvalidRequestError
from omni_core.interface import TRANSCRIPTION, Interface, ParameterGroup, transcription_parameters
from omni_core.protocol.messages import StagePayload
from omni_core.protocol.outputs import Segment, TokenLogprob, Transcript, TranscriptChunk, Word
from omni_serve.encoders import Samples

RATE = 1000
LONGEST = 5.0
"""Seconds that it hears at once."""

_FIRST = -16_000
_PARAMETERS = transcription_parameters("language", "task", "timestamps", "logprobs", "diarize", languages=["en", "de"])
INTERFACE = Interface(
    roles={TRANSCRIPTION: "listen"},
    inputs=["audio"],
    outputs=["text"],
    groups=[ParameterGroup("listen", TRANSCRIPTION, "how it is written down", _PARAMETERS)],
    limits={"max_audio_seconds": LONGEST},
)


def counted(seconds: float) -> bytes:
    """Return a WAV file of numbered samples, at most 32 s of them."""
    samples = np.arange(round(seconds * RATE)) + _FIRST
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return stream.getvalue()


class Schedule:
    """A voice detector that hears speech where a test says so: ``turns`` of begins and ends, in seconds."""

    turns: ClassVar[list[tuple[float, float]]] = []
    frame = 320

    def __init__(self) -> None:
        self._at = 0

    @classmethod
    def after(cls, silences: list[tuple[float, float]]) -> None:
        """Set the turns: each has a silence before it, of some seconds, and some seconds of its own."""
        cls.turns, at = [], 0.0
        for silence, loud in silences:
            cls.turns.append((at + silence, at + silence + loud))
            at += silence + loud

    def score(self, samples: Samples) -> float:
        """Return 1 in a turn, else 0."""
        at, self._at = self._at / 16_000, self._at + self.frame
        return float(any(begin <= at < end for begin, end in self.turns))


def _heard(payload: StagePayload) -> npt.NDArray[np.int64]:
    [part] = payload.request.inputs["messages"][-1]["content"]
    with wave.open(io.BytesIO(part["data"])) as file:
        assert file.getframerate() == RATE
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int64) - _FIRST


def listen(payload: StagePayload) -> Iterator[TranscriptChunk]:
    """Write the numbers of the first and the last sample, each as a word, in hexadecimal if they are translated."""
    numbers = _heard(payload)
    assert (np.diff(numbers) == 1).all(), "samples are lost or doubled within a part"
    asked: dict[str, Any] = payload.request.params.get("listen", {})
    end, times = len(numbers) / RATE, asked.get("timestamps", "none")
    form = "x" if asked.get("task") == "translate" else "d"
    texts = [f"{numbers[0]:{form}}", f" {numbers[-1]:{form}}"]
    spans = [(0.0, 1 / RATE), (end - 1 / RATE, end)]
    speaker = "spk_9" if asked.get("diarize") else None
    segments = [Segment("".join(texts), 0.0, end, speaker)] if times != "none" else []
    words = [Word(text.strip(), *span) for text, span in zip(texts, spans, strict=True)] if times == "word" else []
    told = [TokenLogprob(text, text.encode(), -0.25, 1) for text in texts] if asked.get("logprobs") else []
    yield TranscriptChunk(texts[0], "", [], words[:1], told[:1])
    yield TranscriptChunk(texts[1], "", segments, words[1:], told[1:])
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return Transcript("".join(texts), asked.get("language", "en"), segments, words, end, "stop", usage, [], told)


def worker(payload: StagePayload) -> Transcript:
    """Write the process that hears it, after a while."""
    time.sleep(0.2)
    return Transcript(str(os.getpid()))


def only_the_first(payload: StagePayload) -> Transcript:
    """Write that the first samples of a recording are there, and fail for others."""
    if _heard(payload)[0]:
        raise InvalidRequestError("messages[0].content[0]: no further samples")
    return Transcript("first")


def index_recogniser(factory: str = "listen", replicas: int = 1, **given: Any) -> PipelineConfig:
    """The pipeline. ``given``: of its interface."""
    stage = StageConfig(name="listen", process="p", factory=f"index_recogniser:{factory}", terminal=True)
    stage = evolve(stage, replicas=replicas)
    return PipelineConfig(model_path="none", name="index", stages=[stage], interface=evolve(INTERFACE, **given))
