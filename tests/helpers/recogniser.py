"""A toy that writes recordings down: it counts their tenths of a second aloud, in the language that it is told."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from typing import Any

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.interface import TRANSCRIPTION, Interface, ParameterGroup, transcription_parameters
from omni_core.protocol.messages import StagePayload
from omni_core.protocol.outputs import Segment, Transcript, TranscriptChunk, Word

NUMBERS = {
    "en": ["one", "two", "three", "four", "five", "six"],
    "de": ["eins", "zwei", "drei", "vier", "fünf", "sechs"],
}
STEP = 0.1

PARAMETERS = transcription_parameters("language", "prompt", "timestamps", "diarize", languages=[*NUMBERS])
INTERFACE = Interface(
    roles={TRANSCRIPTION: "listen"},
    inputs=["audio"],
    outputs=["text"],
    groups=[ParameterGroup("listen", TRANSCRIPTION, "how it is written down", PARAMETERS)],
)


def listen(payload: StagePayload) -> Iterator[TranscriptChunk]:
    """Stream a word at a time, with the next one as a guess; a sentence has three words and a speaker."""
    asked: dict[str, Any] = payload.request.params.get("listen", {})
    [part] = payload.request.inputs["messages"][-1]["content"]
    with wave.open(io.BytesIO(part["data"]) if "data" in part else part["path"]) as file:
        seconds = file.getnframes() / file.getframerate()
    heard = NUMBERS[asked.get("language", "en")][: int(seconds / STEP)]
    speaker = "ABC" if asked.get("diarize") else [None] * 3
    words = [Word(each, n * STEP, (n + 1) * STEP, speaker[n // 3], 0.5) for n, each in enumerate(heard)]
    segments = [
        Segment(" ".join(heard[n : n + 3]), n * STEP, words[n : n + 3][-1].end, speaker[n // 3], 0.5)
        for n in range(0, len(heard), 3)
    ]
    times = asked.get("timestamps", "none")
    shown, parts = words if times == "word" else [], segments if times != "none" else []
    for n, word in enumerate(heard):
        guess = f" {heard[n + 1]}?" if n + 1 < len(heard) else ""
        ended = [each for each in parts if words[n].end == each.end]
        yield TranscriptChunk(word if n == 0 else f" {word}", guess, ended, shown[n : n + 1])
    end = "length" if asked.get("prompt") == "cut" else "stop"
    usage = {"prompt_tokens": 1, "completion_tokens": len(heard)}
    return Transcript(" ".join(heard), asked.get("language", "en"), parts, shown, seconds, end, usage)


def recogniser(factory: str = "recogniser:listen") -> PipelineConfig:
    """The pipeline, in one process."""
    stage = StageConfig(name="listen", process="p", factory=factory, terminal=True)
    return PipelineConfig(model_path="none", name="count", stages=[stage], interface=INTERFACE)


def recording(seconds: float) -> bytes:
    """A WAV file of silence."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(2 * round(8000 * seconds)))
    return stream.getvalue()


def unspaced(payload: StagePayload) -> Iterator[TranscriptChunk]:
    """Stream what does not join to the text: wrong."""
    for each in ("one", "two"):
        yield TranscriptChunk(each)
    return Transcript("one two")
