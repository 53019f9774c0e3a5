"""``POST /v1/audio/speech``: a text is spoken, in any format, as bytes or as events, from the first piece on.

The same over a WebSocket, ``/v1/audio/speech/stream``, with the text arriving in pieces, is in :mod:`omni_serve.speech_socket`.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from omni_core.api import SPEECH, TEXT, VOICE, OmniRequest
from omni_serve.bodies import RawRoute, body_of, schema
from omni_serve.calls import Call, Sound
from omni_serve.encoders import Encoder, SampleRate, check_rate, encoder, media_type, written
from omni_serve.errors import invalid, placed
from omni_serve.live_input import LiveInput
from omni_serve.parameters import merged
from omni_serve.server import Server, key_of, server_of
from omni_serve.streams import Stream, event, unless_gone
from omni_serve.usage import of_tokens
from omni_serve.voice_names import apply_voice
from omni_serve.word_times import WordTimes, ask_for_words, shown, with_words, with_words_in_header

router = APIRouter(route_class=RawRoute, tags=["speech"])

SpeechFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm", "pcmu", "pcma"]


_DEFAULTS = {
    "response_format": "mp3",
    "speed": 1.0,
    "stream_format": "audio",
    "timestamps": "none",
    "word_timestamps": False,
}

_NULL = BeforeValidator(lambda value, info: _DEFAULTS[info.field_name] if value is None else value)
"""Take ``null`` as not given: clients of many languages send it."""


class SpeechOptions(BaseModel):
    """A text and the way to speak it. Further keys are parameters of the pipeline."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    voice: str | dict[str, Any] | None = None
    instructions: str | None = None
    response_format: Annotated[SpeechFormat, _NULL] = "mp3"
    sample_rate: SampleRate | None = None
    speed: Annotated[float, Field(ge=0.25, le=4.0), _NULL] = 1.0
    timestamps: Annotated[Literal["none", "word"], _NULL] = "none"
    word_timestamps: Annotated[bool, _NULL] = False
    extra_body: dict[str, Any] | None = None

    @property
    def words(self) -> str:
        """The field that asks for the times of words; empty, if none does."""
        return "timestamps" if self.timestamps == "word" else "word_timestamps" if self.word_timestamps else ""


class SpeechRequest(SpeechOptions):
    """A text to speak."""

    input: str = Field(min_length=1)
    stream_format: Annotated[Literal["audio", "sse"], _NULL] = "audio"


@router.post(
    "/v1/audio/speech",
    openapi_extra=schema(SpeechRequest),
    responses={
        200: {
            "content": {"audio/mpeg": {}, "text/event-stream": {}, "application/json": {}},
            "description": "The sound",
        }
    },
)
async def create_speech(request: Request) -> Response:
    """Speak a text."""
    server = server_of(request)
    asked = await body_of(request, SpeechRequest)
    speaker = Speaker(server, request, asked)
    call = speaker.call(asked.input)
    if asked.stream_format == "sse":
        pieces = as_events(call, speaker.encoded(call), speaker.words)
        return Stream(pieces, "text/event-stream", events=True, ping_seconds=server.settings.ping_seconds)
    if asked.words:
        return await unless_gone(request, speaker.with_words(call))
    return Stream(speaker.encoded(call), speaker.media_type)


class Speaker:
    """Speaks texts with one set of options; all of it is one file.

    Attributes:
        media_type: of the file.
        words: those that are said, if the options ask for them.

    Raises:
        ApiError: 400, an option is not honoured, or the pipeline speaks no given texts.
    """

    def __init__(self, server: Server, connection: HTTPConnection, options: SpeechOptions) -> None:
        server.check_model(options.model)
        self._server, self._key = server, key_of(connection)
        self._options = options
        interface = server.interface
        check_rate(options.response_format, options.sample_rate, "sample_rate")
        self.media_type = media_type(options.response_format, options.sample_rate)
        if "audio" not in interface.outputs:
            raise invalid("This pipeline does not speak; it answers in text.", code="unsupported_operation")
        self._prompt = None if interface.speaks_texts else interface.prompts.get("speech")
        if not interface.speaks_texts and self._prompt is None:
            raise invalid(
                "This pipeline answers in its own words and reads no text aloud; its speech is in chat completions "
                "with modalities ['text', 'audio']",
                code="unsupported_operation",
            )
        given = merged(options.model_extra, options.extra_body, SpeechRequest.model_fields)
        self._is_output = SPEECH in interface.outputs
        parameters = server.speech_parameters if self._is_output else server.parameters
        self._how = None
        if self._is_output and interface.speech_system and not parameters.reads("instructions"):
            self._how = options.instructions or None
        elif options.instructions:
            given["instructions"] = options.instructions
        self._parameters = parameters.read(given, SpeechRequest.model_fields)
        server.parameters.pace(self._parameters.params, options.speed)
        self._stretch = 1.0 if server.parameters.paces else options.speed
        self._live, self.words = True, WordTimes(self._stretch)
        if options.words:
            ask_for_words(interface, self._parameters.params, options.words)
        self._voice: dict[str, Any] = {}
        apply_voice(server, self._key, options.voice, self._voice, self._parameters.metadata, "voice")
        server.apply_session(connection, self._parameters.metadata)
        self._places = {"messages[0].content": "input", VOICE: "voice"}
        if self._how is not None:
            self._places |= {"messages[0].content": "instructions", "messages[1].content": "input"}
        named = [*given, *(["speed"] if options.speed != 1.0 else [])]
        self._places |= {f"stage_sampling.{group.name}.{name}": name for group in interface.groups for name in named}
        self._places["messages"] = "input"
        self._body = connection.scope.get("omni.body")
        self._encoder: Encoder | None = None

    def call(self, text: str) -> Call:
        """Return the request that speaks a text.

        Raises:
            ApiError: the text is too long.
        """
        arrived = time.perf_counter()
        limits, declared = self._server.settings.limits, self._server.interface.limits
        most = int(min(limits.speech_characters, declared.get("max_characters", limits.speech_characters)))
        if len(text) > most:
            raise invalid(
                f"input: {len(text)} characters are over the limit of {most}; speak it in several requests",
                "input",
                "string_above_max_length",
            )
        if not text.strip():
            raise invalid("input: there is nothing to speak", "input", "invalid_value")
        content = text if self._prompt is None else self._prompt.replace("{text}", text)
        how = [{"role": "system", "content": self._how}] if self._how is not None else []
        request = self._request([*how, {"role": "user", "content": content}])
        return Call(self._server, self._key, request, speech=True, body=self._body, arrived=arrived)

    @property
    def streams(self) -> bool:
        """Return whether the pipeline speaks a text that is still being written."""
        interface = self._server.interface
        return SPEECH in interface.roles and TEXT not in interface.roles and "text" in interface.input_streams

    def open(self, text: LiveInput) -> Call:
        """Return the request that speaks such a text."""
        return Call(self._server, self._key, self._request([]), speech=True, input=text)

    def _request(self, messages: list[dict[str, Any]]) -> OmniRequest:
        outputs = self._server.interface.outputs
        return OmniRequest(
            {"messages": messages, **self._voice},
            self._parameters.params,
            [SPEECH] if self._is_output else [each for each in ("text", "audio") if each in outputs],
            self._parameters.metadata,
        )

    async def encoded(self, call: Call, *, last: bool = True) -> AsyncGenerator[bytes]:
        """Yield the file's bytes for a text, or none where there are new words; ``last``: it ends with it."""
        with placed(self._places):
            async with aclosing(call.pieces()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Sound):
                        if self._encoder is None:
                            self._encoder = self._new(piece.rate)
                        told = bool(self._options.words) and self.words.add(piece.words)
                        if (data := await written(self._encoder, piece.samples)) or told:
                            yield data
        if last and (rest := self.finish() if self._live else await asyncio.to_thread(self.finish)):
            yield rest

    def finish(self) -> bytes:
        """Return the end of the file."""
        return (self._encoder or self._new(self._server.rate)).finish()

    def _new(self, rate: int) -> Encoder:
        form, target = self._options.response_format, self._options.sample_rate
        return encoder(form, rate, live=self._live, speed=self._stretch, target=target)

    async def with_words(self, call: Call) -> Response:
        """Return a whole file for a text, with its words beside it."""
        self._live = False
        if self._options.words == "word_timestamps":
            return await with_words_in_header(self.encoded(call), self.words, self.media_type)
        encoded, name = self.encoded(call), self._options.response_format
        return await with_words(encoded, self.words, call, name, self.media_type, self._stretch)


async def as_events(call: Call, pieces: AsyncGenerator[bytes], words: WordTimes) -> AsyncGenerator[bytes]:
    """Yield speech events. Each piece of sound is its own base64 text; words follow the piece with their end."""
    async with aclosing(pieces):
        async for piece in pieces:
            if piece:
                data = base64.b64encode(piece)
                yield b'event: speech.audio.delta\ndata: {"type":"speech.audio.delta","audio":"' + data + b'"}\n\n'
            if told := words.take():
                yield event({"type": "speech.audio.words", "words": shown(told)}, "speech.audio.words")
    done: dict[str, Any] = {"type": "speech.audio.done", "usage": of_tokens(call.usage)}
    if call.notices:
        done["notices"] = call.notices
    yield event(done, "speech.audio.done")
