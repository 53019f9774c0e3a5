"""``POST /v1/audio/speech``: a text is spoken, in any format, as bytes or as events, from the first piece on.

The same over a WebSocket, ``/v1/audio/speech/stream``, with the text arriving in pieces, is in :mod:`omni_serve.speech_socket`.
"""

from __future__ import annotations

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
from omni_serve.encoders import Encoder, encoder, media_type
from omni_serve.errors import invalid, placed
from omni_serve.live_input import LiveInput
from omni_serve.parameters import merged
from omni_serve.server import Server, key_of, server_of
from omni_serve.streams import Stream, event
from omni_serve.usage import of_tokens
from omni_serve.voice_names import apply_voice

router = APIRouter(route_class=RawRoute, tags=["speech"])

SpeechFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


_DEFAULTS = {"response_format": "mp3", "speed": 1.0, "stream_format": "audio"}

_NULL = BeforeValidator(lambda value, info: _DEFAULTS[info.field_name] if value is None else value)
"""Take ``null`` as not given: clients of many languages send it."""


class SpeechOptions(BaseModel):
    """A text and the way to speak it. Further keys are parameters of the pipeline."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    voice: str | dict[str, Any] | None = None
    instructions: str | None = None
    response_format: Annotated[SpeechFormat, _NULL] = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4.0), _NULL] = 1.0
    extra_body: dict[str, Any] | None = None


class SpeechRequest(SpeechOptions):
    """A text to speak."""

    input: str = Field(min_length=1)
    stream_format: Annotated[Literal["audio", "sse"], _NULL] = "audio"


@router.post(
    "/v1/audio/speech",
    openapi_extra=schema(SpeechRequest),
    responses={200: {"content": {"audio/mpeg": {}, "text/event-stream": {}}, "description": "The sound"}},
)
async def create_speech(request: Request) -> Response:
    """Speak a text."""
    server = server_of(request)
    asked = await body_of(request, SpeechRequest)
    speaker = Speaker(server, request, asked)
    call = speaker.call(asked.input)
    if asked.stream_format == "sse":
        pieces = as_events(call, speaker.encoded(call))
        return Stream(pieces, "text/event-stream", events=True, ping_seconds=server.settings.ping_seconds)
    return Stream(speaker.encoded(call), media_type(asked.response_format))


class Speaker:
    """Speaks texts with one set of options; all of it is one file.

    Raises:
        ApiError: 400, an option is not honoured, or the pipeline speaks no given texts.
    """

    def __init__(self, server: Server, connection: HTTPConnection, options: SpeechOptions) -> None:
        server.check_model(options.model)
        self._server, self._key = server, key_of(connection)
        self._options = options
        interface = server.interface
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
        if options.instructions:
            given["instructions"] = options.instructions
        self._parameters = server.parameters.read(given, SpeechRequest.model_fields)
        server.parameters.pace(self._parameters.params, options.speed)
        self._stretch = 1.0 if server.parameters.paces else options.speed
        self._voice: dict[str, Any] = {}
        apply_voice(server, self._key, options.voice, self._voice, self._parameters.metadata, "voice")
        server.apply_session(connection, self._parameters.metadata)
        self._places = {"messages[0].content": "input", VOICE: "voice"}
        self._places |= {f"stage_sampling.{group.name}.instructions": "instructions" for group in interface.groups}
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
        request = self._request([{"role": "user", "content": content}])
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
        """Yield the file's bytes for a text; ``last``: it ends with it."""
        with placed(self._places):
            async with aclosing(call.pieces()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Sound):
                        if self._encoder is None:
                            self._encoder = self._new(piece.rate)
                        if data := self._encoder.write(piece.samples):
                            yield data
        if last and (rest := self.finish()):
            yield rest

    def finish(self) -> bytes:
        """Return the end of the file."""
        return (self._encoder or self._new(self._server.rate)).finish()

    def _new(self, rate: int) -> Encoder:
        return encoder(self._options.response_format, rate, live=True, speed=self._stretch)


async def as_events(call: Call, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield speech events. Each piece of sound is its own base64 text."""
    async with aclosing(pieces):
        async for piece in pieces:
            data = base64.b64encode(piece).decode()
            yield b'event: speech.audio.delta\ndata: {"type":"speech.audio.delta","audio":"' + data.encode() + b'"}\n\n'
    done: dict[str, Any] = {"type": "speech.audio.done", "usage": of_tokens(call.usage)}
    if call.notices:
        done["notices"] = call.notices
    yield event(done, "speech.audio.done")
