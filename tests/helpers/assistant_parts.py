"""Scripted parts of an assistant: recordings are texts as bytes, the model repeats what it was given, a word of speech is a sample."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.api import (
    SPEECH,
    TEXT,
    TRANSCRIPTION,
    VOICE,
    AudioChunk,
    AudioResult,
    Interface,
    InvalidRequestError,
    OmniRequest,
    Parameter,
    ParameterGroup,
    PipelineConfig,
    StageConfig,
    StagePayload,
    StreamingScheduler,
    TextChunk,
    TextResult,
    Transcript,
    TranscriptChunk,
    text_to_speak,
    transcription_parameters,
)

RATE = 100


def recogniser(*, live: bool = False, stages: int = 1) -> PipelineConfig:
    """Return a recogniser; ``stages``: how many it has."""
    target = "assistant_parts:Listen" if live else "assistant_parts:listen"
    last = StageConfig(name="listen", process="p", factory=target, terminal=True)
    first = StageConfig(name="open", process="p", factory="assistant_parts:unchanged", next="listen")
    offer = Interface(
        roles={TRANSCRIPTION: "listen"},
        inputs=["audio"],
        input_streams=["audio"] if live else [],
        outputs=["text"],
        groups=[ParameterGroup("listen", TRANSCRIPTION, "how", transcription_parameters("language"))],
    )
    return PipelineConfig(model_path="none", name="ears", stages=[first, last][-stages:], interface=offer)


def unchanged(payload: StagePayload) -> Any:
    """Hand the inputs on."""
    return payload.request.inputs


def listen(payload: StagePayload) -> Iterator[TranscriptChunk]:
    """Write down a recording, word by word; one that begins with a path goes on until it is aborted, and then writes there."""
    [message] = (payload.request.inputs or payload.data)["messages"]
    [part] = message["content"]
    words = bytes(part["data"]).decode().split()
    if words == ["damaged"]:
        raise InvalidRequestError("messages[0].content[0]: damaged")
    try:
        while words[0].startswith("/"):
            yield TranscriptChunk("and ")
    finally:
        if words[0].startswith("/"):
            Path(words[0]).write_text("listened")
    for word in words:
        yield TranscriptChunk(f"{word} ")
    language = payload.request.params.get("listen", {}).get("language", "")
    return Transcript(" ".join([*words, *([language] if language else [])]))


class Listen(StreamingScheduler[dict[str, Any]]):
    """A recogniser of sound that is still coming: a sample is the code of a letter."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> dict[str, Any]:
        return {"id": request_id, "text": ""}

    def on_payload(self, state: dict[str, Any], payload: StagePayload) -> None:
        for message in (payload.request.inputs or {}).get("messages", ()):
            state["text"] += bytes(message["content"][0]["data"]).decode()

    def on_chunk(self, state: dict[str, Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        heard = "".join(chr(int(each)) for each in chunk.samples)
        state["text"] += heard
        self.emit(state["id"], TranscriptChunk(heard))

    def finish(self, request_id: str, state: dict[str, Any]) -> Transcript:
        return Transcript(state["text"])


def writer() -> PipelineConfig:
    """Return a language model."""
    prepare = StageConfig(name="prepare", process="p", factory="assistant_parts:unchanged", next="answer")
    answer = StageConfig(name="answer", process="p", factory="assistant_parts:answer", terminal=True)
    parameters = [
        Parameter("shout", "boolean", "in capitals"),
        Parameter("door", "string", "a pipe that is read before the last word"),
        Parameter("forever", "string", "write until the request is aborted, then here"),
    ]
    offer = Interface(
        roles={TEXT: "answer"},
        inputs=["text", "image"],
        outputs=["text"],
        groups=[ParameterGroup("answer", TEXT, "how", parameters)],
        params=[Parameter("thinking", "boolean", "before it answers")],
        tool_format="tagged-json",
    )
    return PipelineConfig(model_path="none", name="mind", stages=[prepare, answer], interface=offer)


def answer(payload: StagePayload) -> Iterator[TextChunk]:
    """Answer with what the model was asked, as JSON behind a sentence."""
    asked = payload.request.params.get("answer", {})
    given = dict(payload.data)
    given["messages"] = [[each["role"], each["content"]] for each in given["messages"]]
    words = ["You said. ", json.dumps(given), " Good bye."]
    words = [each.upper() for each in words] if asked.get("shout") else words
    for word in words:
        if word == words[-1] and asked.get("door"):
            Path(asked["door"]).read_text()
        yield TextChunk(word)
    try:
        while asked.get("forever"):
            yield TextChunk("And so on. ")
    finally:
        if asked.get("forever"):
            Path(asked["forever"]).write_text("wrote")
    return TextResult("".join(words))


def voice(*, streams: bool = True) -> PipelineConfig:
    """Return a voice."""
    offer = Interface(
        roles={SPEECH: "say"},
        inputs=["text", "reference"],
        input_streams=["text"] if streams else [],
        outputs=["audio"],
        metadata=[Parameter(VOICE, "string", "the voice", choices=["high", "low"])],
        voices=["high", "low"],
        sample_rate=RATE,
    )
    stage = StageConfig(name="say", process="p", factory="assistant_parts:Say", terminal=True)
    return PipelineConfig(model_path="none", name="mouth", stages=[stage], interface=offer)


class Say(StreamingScheduler[dict[str, Any]]):
    """Makes a sample of every letter: a thousandth of its code, the negative of it in the low voice, and twice that in a recorded one."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> dict[str, Any]:
        low = request is not None and request.metadata.get(VOICE) == "low"
        return {"id": request_id, "sign": -1 if low else 1, "text": ""}

    def on_payload(self, state: dict[str, Any], payload: StagePayload) -> None:
        assert not state["text"], "a request is opened before its text comes"
        inputs = payload.request.inputs
        state["sign"] *= 2 if inputs.get("references") else 1
        state["text"] = text_to_speak(payload.request) or ""

    def on_chunk(self, state: dict[str, Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        state["text"] += chunk.text
        self.emit(state["id"], AudioChunk(self._sound(state, chunk.text), RATE))

    def finish(self, request_id: str, state: dict[str, Any]) -> AudioResult:
        return AudioResult(self._sound(state, state["text"]), RATE)

    def _sound(self, state: dict[str, Any], text: str) -> Any:
        return np.array([state["sign"] * ord(each) / 1000 for each in text], np.float32)


def spoken(samples: Any) -> str:
    """Return what was said."""
    return "".join(chr(round(abs(each) * 1000)) for each in samples)
