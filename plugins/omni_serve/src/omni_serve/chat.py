"""``POST /v1/chat/completions``: text and speech, whole or streamed, in the order and the pieces that OpenAI's clients expect."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Annotated, Any, Literal

from attrs import define, evolve, field
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from omni_core.api import STRUCTURED, OmniRequest
from omni_serve.bodies import Base64, RawRoute, body_of, dumps, media_response, schema
from omni_serve.calls import Call, Sound, Thought
from omni_serve.chat_messages import ChatMessages
from omni_serve.choices import Choices, Count, seeded, stream_end
from omni_serve.encoders import Encoder, SampleRate, check_rate, encoder, whole, written
from omni_serve.errors import invalid
from omni_serve.logprobs import ask_logprobs, of_chat_tokens
from omni_serve.parameters import merged
from omni_serve.server import Server, key_of, server_of
from omni_serve.streams import Stream, event, unless_gone
from omni_serve.structured import fields_of, take_structured
from omni_serve.tool_formats import ToolCall
from omni_serve.tools import ReplyReader, ToolChoice, ToolOptions, Tools, call_deltas
from omni_serve.voice_names import apply_voice

router = APIRouter(route_class=RawRoute, tags=["chat"])

Modality = Literal["text", "audio"]


class AudioOptions(BaseModel):
    """The voice and the encoding of an answer's speech."""

    model_config = ConfigDict(extra="allow")

    voice: str | dict[str, Any] | None = None
    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16", "pcm", "pcmu", "pcma"] | None = None
    sample_rate: SampleRate | None = None


class StreamOptions(BaseModel):
    """Options of a stream. Events are never obfuscated."""

    model_config = ConfigDict(extra="allow", strict=True)

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """A chat. Further keys are parameters of the pipeline."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1, fail_fast=True)
    modalities: Annotated[list[Modality], Field(min_length=1, fail_fast=True)] | None = None
    audio: AudioOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    n: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    extra_body: dict[str, Any] | None = None


@router.post("/v1/chat/completions", openapi_extra=schema(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation with text, with speech, or with both."""
    server = server_of(request)
    asked = await body_of(request, ChatRequest, media=["messages"])
    chat = await Chat.make(server, request, asked)
    streamed, options, n = asked.stream, asked.stream_options, asked.n
    del asked  # its media are here a second time, and an answer may take long
    answers = Choices([chat, *(chat.another(index) for index in range(1, n or 1))])
    if streamed:
        usage = options is not None and bool(options.include_usage)
        is_alone = len(answers.chats) == 1  # a generator less
        pieces = chat.events(include_usage=usage, last=True) if is_alone else answers.stream(include_usage=usage)
        return Stream(pieces, "text/event-stream", events=True, ping_seconds=server.settings.ping_seconds)
    return await media_response(await unless_gone(request, answers.whole()))


@define(eq=False)
class Chat:
    """One chat request, ready to run."""

    server: Server
    call: Call
    model: str
    format: str | None
    rate: int | None
    reader: ReplyReader | None
    tools: ToolOptions | None = None
    tells_logprobs: bool = False
    index: int = 0
    identity: str = field(factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(factory=lambda: int(time.time()))

    @classmethod
    async def make(
        cls,
        server: Server,
        request: Request,
        asked: ChatRequest,
        fields: Iterable[str] = tuple(ChatRequest.model_fields),
    ) -> Chat:
        """Check a request and translate it for the pipeline.

        Args:
            fields: what the client may name beside parameters.

        Raises:
            ApiError: the request is at fault.
        """
        arrived = time.perf_counter()
        server.check_model(asked.model)
        key = key_of(request)
        outputs = server.interface.outputs
        speech, modalities = _modalities(asked, outputs)
        extra = (
            merged(asked.model_extra, asked.extra_body, {*ChatRequest.model_fields, *fields})
            if asked.extra_body
            else asked.model_extra
        )
        extra = dict(extra or {})
        structured, held_by = take_structured(server.interface, extra)
        parameters = server.parameters.read(extra, fields)
        ask_logprobs(server, asked.logprobs, asked.top_logprobs, parameters.params)
        if speech and (asked.n or 1) > 1:
            raise invalid("n: an answer with speech has one choice", "n", "unsupported_value")
        tools = ToolOptions.read(
            server.interface, server.settings.limits, asked.tools, asked.tool_choice, asked.parallel_tool_calls
        )
        messages = await ChatMessages(server, key.name, tools=bool(server.interface.tool_format)).read(asked.messages)
        inputs: dict[str, Any] = {"messages": messages}
        if tools is not None:
            inputs |= tools.inputs
            structured = tools.held(server.interface, structured)
            held_by = held_by if tools.forced is None else "tool_choice"
        if structured is not None:
            parameters.params[STRUCTURED] = structured
        if speech:
            voice = asked.audio.voice if asked.audio else None
            apply_voice(server, key, voice, inputs, parameters.metadata, "audio.voice")
        server.apply_session(request, parameters.metadata)
        omni = OmniRequest(inputs, parameters.params, modalities, parameters.metadata)
        audio = asked.audio or AudioOptions()
        form = audio.format or ("pcm16" if asked.stream else "wav")
        check_rate(form, audio.sample_rate, "audio.sample_rate")
        call = Call(server, key, omni, speech, thinks=True, body=request.scope["omni.body"], arrived=arrived)
        call.fields = fields_of(server.interface, structured, held_by)
        reader = tools.reader() if tools is not None else None
        return cls(
            server, call, asked.model, form if speech else None, audio.sample_rate, reader, tools, bool(asked.logprobs)
        )

    def another(self, index: int) -> Chat:
        """Return the request of a further choice, with a seed of its own if this one has one."""
        call, reader = self.call, self.tools.reader() if self.tools is not None else None
        request = evolve(call.request, params=seeded(call.request.params, index))
        made = Call(call.server, call.key, request, call.speech, thinks=True, arrived=call.arrived, fields=call.fields)
        return evolve(self, call=made, reader=reader, index=index)

    async def choice(self) -> dict[str, Any]:
        """Return the choice of the ``chat.completion`` object."""
        text, sounds, rate = await self.call.whole()
        calls: list[ToolCall] = []
        if self.reader is not None:
            found = self.reader.read(text, last=True)
            text = "".join(each for each in found if isinstance(each, str))
            calls = [each for each in found if isinstance(each, ToolCall)]
        message: dict[str, Any] = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
        if self.call.thoughts:
            message["reasoning_content"] = self.call.thoughts
        if calls:
            message["tool_calls"] = [each.as_openai() for each in calls]
        if self.format is not None and (text or sounds or not calls):
            identity, expires = self.server.spoken.begin()
            rate = rate or self.server.rate
            data = await asyncio.to_thread(whole, self.format, sounds, rate, self.rate) if sounds else b""
            message["content"] = None
            message["audio"] = {
                "id": identity,
                "data": Base64(data),
                "expires_at": expires,
                "transcript": text,
            }
            self.server.spoken.keep(identity, self.call.key.name, text)
        logprobs = of_chat_tokens(self.call.fresh_logprobs()) if self.tells_logprobs else None
        reason = self._finish_reason(bool(calls))
        return {"index": self.index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def common(self, kind: str) -> dict[str, Any]:
        """Return the fields that all objects of the answer have."""
        return {"id": self.identity, "object": kind, "created": self.created, "model": self.model}

    def _finish_reason(self, has_calls: bool) -> str:
        if self.call.finish_reason == "length":
            return "length"
        return "tool_calls" if has_calls else "stop"

    async def events(self, *, include_usage: bool, last: bool = False) -> AsyncGenerator[bytes]:
        """Yield the server-sent events of the choice. ``last``: and what ends the stream."""
        common = self.common("chat.completion.chunk")
        chunks = _Chunks(common, self.index, speech=self.format is not None, include_usage=include_usage)
        spoken = _SpokenPart(self, chunks) if self.format is not None else None
        begun, calls = False, 0
        # Without tools, one generator less: most requests have none.
        async with aclosing(self.parts() if self.reader is not None else self.call.pieces()) as parts:
            async for part in parts:
                if not begun:
                    begun = True
                    yield chunks.role()
                if isinstance(part, ToolCall):
                    yield chunks.tool(calls, part)
                    calls += 1
                elif isinstance(part, Thought):
                    yield chunks.thought(part)
                elif spoken is not None:
                    if data := spoken.text(part) if isinstance(part, str) else await spoken.sound(part):
                        yield data
                elif isinstance(part, str):
                    yield chunks.content(part, self._fresh_logprobs())
        if not begun:
            yield chunks.role()
        if spoken is not None and (spoken.begun or not calls):
            self.server.spoken.keep(spoken.identity, self.call.key.name, spoken.transcript)
            yield spoken.end()
        if self.tells_logprobs and self.call.logprobs:
            yield chunks.content("", self._fresh_logprobs())
        ending = chunks.end(self._finish_reason(calls > 0), self.call.notices)
        yield ending + (stream_end(common, [self.call.usage] if include_usage else None) if last else b"")

    def _fresh_logprobs(self) -> str:
        return dumps(of_chat_tokens(self.call.fresh_logprobs())) if self.tells_logprobs else "null"

    async def parts(self) -> AsyncGenerator[str | Sound | ToolCall]:
        """Yield the pieces of the reply, with the calls read out of its text."""
        async with aclosing(self.call.pieces()) as pieces:
            async for piece in pieces:
                if isinstance(piece, Sound | Thought) or self.reader is None:
                    yield piece
                else:
                    for part in self.reader.read(piece):
                        yield part
        for part in self.reader.read("", last=True) if self.reader is not None else ():
            yield part


class _SpokenPart:
    """The speech of a streamed answer: encoded as it is made, in pieces whose base64 texts may simply be joined.

    The SDK joins the texts, not the bytes: each piece but the last is a multiple of 3 bytes, and of 2 for whole samples.
    """

    def __init__(self, chat: Chat, chunks: _Chunks) -> None:
        self._chunks, self._chat = chunks, chat
        self._encoder: Encoder | None = None
        self._left = b""
        self.begun, self.transcript = False, ""
        self.identity, self.expires = chat.server.spoken.begin()

    def _begin(self) -> bytes:
        """Return the piece with the id, once."""
        if self.begun:
            return b""
        self.begun = True
        return self._chunks.delta('{"audio":{"id":"' + self.identity + '","transcript":""}}')

    def text(self, text: str) -> bytes:
        """Return a piece of the transcript."""
        self.transcript += text
        return self._begin() + self._chunks.delta('{"audio":{"transcript":' + dumps(text) + "}}")

    async def sound(self, sound: Sound) -> bytes:
        """Return a piece of sound, or nothing yet."""
        if self._encoder is None:
            assert self._chat.format is not None
            self._encoder = encoder(self._chat.format, sound.rate, live=True, target=self._chat.rate)
        data = self._left + await written(self._encoder, sound.samples)
        cut = len(data) - len(data) % 6
        self._left = data[cut:]
        return self._begin() + self._data(data[:cut])

    def end(self) -> bytes:
        """Return the rest of the sound and the piece with the time of expiry."""
        rest = self._left + (self._encoder.finish() if self._encoder is not None else b"")
        return self._begin() + self._data(rest) + self._chunks.delta(f'{{"audio":{{"expires_at":{self.expires}}}}}')

    def _data(self, data: bytes) -> bytes:
        if not data:
            return b""
        return self._chunks.delta('{"audio":{"data":"' + base64.b64encode(data).decode() + '"}}')


class _Chunks:
    """Makes ``chat.completion.chunk`` objects. Only what changes is written anew: a stream has thousands of them."""

    def __init__(self, common: dict[str, Any], index: int, *, speech: bool, include_usage: bool) -> None:
        self._role = dumps({"role": "assistant", "content": None if speech else "", "refusal": None})
        self._common, self._index = common, index
        usage = ',"usage":null' if include_usage else ""
        self._head = "data: " + dumps(self._common)[:-1] + f',"choices":[{{"index":{index},"delta":'
        self._tail = ',"finish_reason":null}]' + usage + "}\n\n"
        self._include_usage = include_usage

    def delta(self, delta: str, logprobs: str = "null") -> bytes:
        """Return a chunk with a delta, given as JSON text."""
        return f'{self._head}{delta},"logprobs":{logprobs}{self._tail}'.encode()

    def role(self) -> bytes:
        return self.delta(self._role)

    def content(self, text: str, logprobs: str = "null") -> bytes:
        return self.delta('{"content":' + dumps(text) + "}", logprobs)

    def thought(self, text: str) -> bytes:
        return self.delta('{"reasoning_content":' + dumps(text) + "}")

    def tool(self, index: int, call: ToolCall) -> bytes:
        return b"".join(self.delta(dumps({"tool_calls": [each]})) for each in call_deltas(index, call))

    def end(self, reason: str, notices: list[str]) -> bytes:
        choice = {"index": self._index, "delta": {}, "logprobs": None, "finish_reason": reason}
        ending: dict[str, Any] = {**self._common, "choices": [choice]}
        if self._include_usage:
            ending["usage"] = None
        if notices:
            ending["notices"] = notices
        return event(ending)


def _modalities(asked: ChatRequest, outputs: list[str]) -> tuple[bool, list[str] | None]:
    """Return if the answer has speech, and the modalities to ask of the pipeline. A spoken answer always has its transcript."""
    wanted = asked.modalities
    if wanted is None:
        # OpenAI's default is text. A pipeline that only speaks answers with speech.
        speech = bool(outputs) and "text" not in outputs
        wanted = ["audio"] if speech else ["text"]
    for index, each in enumerate(wanted):
        if outputs and each not in outputs and not (each == "text" and "audio" in wanted):
            raise invalid(
                f"modalities[{index}]: this pipeline answers in {' and '.join(outputs)} only, not in {each}",
                f"modalities[{index}]",
                "unsupported_value",
            )
    speech = "audio" in wanted
    if asked.audio is not None and not speech:
        raise invalid("audio: only with modalities that have 'audio'", "audio", "invalid_value")
    if not outputs:
        return speech, None
    return speech, [each for each in ("text", "audio") if each in outputs and (speech or each == "text")]
