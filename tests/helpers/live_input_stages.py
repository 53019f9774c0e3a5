"""Entry stages whose input may still be coming: a recogniser that counts samples, and a voice that spells."""

from __future__ import annotations

import io
import os
import signal
import time
import wave
from typing import Any

import numpy as np
from attrs import define, field

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import InvalidRequestError
from omni_core.interface import SPEECH, TRANSCRIPTION, Interface, Parameter, ParameterGroup, transcription_parameters
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import AudioChunk, AudioResult, Transcript, TranscriptChunk
from omni_core.scheduling.streaming import StreamingScheduler

WORDS_A_SECOND = 10
VOICE_RATE = 8000

HEARING = Interface(
    roles={TRANSCRIPTION: "hear"},
    inputs=["audio"],
    input_streams=["audio"],
    outputs=["text"],
    groups=[
        ParameterGroup("hear", TRANSCRIPTION, "how it is written down", transcription_parameters("language", "prompt"))
    ],
)
SPELLING = Interface(
    roles={SPEECH: "spell"},
    inputs=["text"],
    input_streams=["text"],
    outputs=["audio"],
    voices=["low", "high"],
    metadata=[Parameter("speaker", "string", "the voice", choices=["low", "high"])],
    sample_rate=VOICE_RATE,
)


def words(seconds: float, language: str = "en") -> str:
    """Return what is heard in so much sound: the number of each tenth of a second."""
    return " ".join(f"{language}{n}" for n in range(1, int(seconds * WORDS_A_SECOND + 1e-9) + 1))


@define
class _Heard:
    identity: str
    asked: dict[str, Any]
    rate: int = 0
    count: int = 0
    said: int = 0
    total: float = 0.0
    text: str = ""
    pieces: list[int] = field(factory=list)


class Hear(StreamingScheduler[_Heard]):
    """Says a word for each tenth of a second, with the next one as a guess; its usage has the number of samples, and their sum.

    ``fail``, ``die``, ``wait`` and ``stop`` as a request's prompt are commands of the tests: at its first sound.
    """

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Heard:
        assert request is not None
        return _Heard(request_id, request.params.get("hear", {}))

    def on_payload(self, state: _Heard, payload: StagePayload) -> None:
        for message in payload.request.inputs["messages"]:
            [part] = message["content"]
            with wave.open(io.BytesIO(part["data"])) as file:
                samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
                self.on_chunk(state, AudioChunk(samples, file.getframerate()), None)

    def on_chunk(self, state: _Heard, chunk: AudioChunk, metadata: dict[str, Any] | None) -> None:
        match state.asked.get("prompt"):
            case "fail":
                raise ValueError("told to fail")
            case "refuse":
                raise InvalidRequestError("told to refuse")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "wait":
                time.sleep(0.5)
        if state.rate not in (0, chunk.sample_rate):
            raise InvalidRequestError("the rate has changed")
        state.rate = chunk.sample_rate
        state.count += len(chunk.samples)
        state.total += float(np.sum(chunk.samples, dtype=np.float64))
        text, most = "", state.count * WORDS_A_SECOND // state.rate
        while state.said < most:
            state.said += 1
            text += f"{' ' if state.said > 1 else ''}{state.asked.get('language', 'en')}{state.said}"
        state.text += text
        self.emit(state.identity, TranscriptChunk(text, f" {state.said + 1}?"))

    def finish(self, request_id: str, state: _Heard) -> Transcript:
        if not state.count:
            raise InvalidRequestError("messages[0].content[0]: there is no sound in it")
        usage = {"prompt_tokens": state.count, "completion_tokens": round(state.total * 32768) % 2**31}
        return Transcript(state.text, usage=usage)


class Spell(StreamingScheduler[list[Any]]):
    """Says each character as a tenth of a second of its number; ``!`` fails."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> list[Any]:
        return [request_id, ""]

    def on_payload(self, state: list[Any], payload: StagePayload) -> None:
        for message in payload.request.inputs["messages"]:
            self._say(state, message["content"])

    def on_chunk(self, state: list[Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        self._say(state, chunk.text)

    def _say(self, state: list[Any], text: str) -> None:
        if "!" in text:
            raise InvalidRequestError("messages[0].content: an exclamation")
        state[1] += text
        if text:
            self.emit(state[0], AudioChunk(spelled(text), VOICE_RATE))

    def finish(self, request_id: str, state: list[Any]) -> AudioResult:
        if not state[1]:
            raise InvalidRequestError("messages[0].content: there is nothing to say")
        return AudioResult(spelled(state[1]), VOICE_RATE, usage={"prompt_tokens": len(state[1])})


def spelled(text: str) -> np.ndarray:
    """Return the sound of a text."""
    return np.repeat(np.array([ord(each) % 128 / 256 for each in text], np.float32), VOICE_RATE // 10)


def hearing_pipeline(process: str = "p", interface: Interface = HEARING, **fields: Any) -> PipelineConfig:
    """A pipeline that writes down sound while it comes."""
    stage = StageConfig(name="hear", process=process, factory="live_input_stages:Hear", terminal=True)
    return PipelineConfig(model_path="none", name="hear", stages=[stage], interface=interface, **fields)


def spelling_pipeline(interface: Interface = SPELLING) -> PipelineConfig:
    """A pipeline that says a text while it is written."""
    stage = StageConfig(name="spell", process="p", factory="live_input_stages:Spell", terminal=True)
    return PipelineConfig(model_path="none", name="spell", stages=[stage], interface=interface)
