"""``WS /v1/audio/speech/stream``: text arrives in pieces, as a language model writes it, and is spoken meanwhile.

The client sends ``session.config`` with the options of ``/v1/audio/speech``, then ``input.text`` as often as it likes, then
``input.done``. The server answers ``session.started``, for each sentence ``audio.start``, binary frames and ``audio.done``, and at the
end ``session.done``. All frames together are one file. ``error`` ends the session. With ``timestamps: "word"``, or ``word_timestamps``,
each frame is an ``audio.chunk`` with base64 sound and the words that end in it or before it, with milliseconds from ``audio.start``.

To a pipeline that takes text as a stream the pieces go as they come, in one request: then there is one ``audio.start``, without the text
of a sentence, and one ``audio.done``.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import Any

from fastapi import APIRouter
from starlette.websockets import WebSocket

from omni_core.api import SentenceCutter, did_you_mean, shown
from omni_serve.auth import subprotocol
from omni_serve.errors import ApiError, invalid
from omni_serve.ignored import collect
from omni_serve.json_input import check_text, read_event
from omni_serve.live_input import LiveInput, text_input
from omni_serve.server import Server, key_of, server_of
from omni_serve.sockets import ended, sent
from omni_serve.speech import Speaker, SpeechOptions
from omni_serve.word_times import chunk

router = APIRouter()

CONFIG_SECONDS = 10.0
"""The time until the first message must have come."""

IDLE_SECONDS = 300.0
"""The longest time between two messages of a client."""

_EVENTS = ("session.config", "input.text", "input.done")


@router.websocket("/v1/audio/speech/stream")
async def speak_stream(socket: WebSocket) -> None:
    """Speak a text that arrives in pieces."""
    server = server_of(socket)
    await socket.accept(subprotocol(socket.scope.get("subprotocols") or []))
    async with ended(socket, _error_event):
        with server.enter_session(key_of(socket), "/v1/audio/speech/stream"):
            await _Session(server, socket).run()
        await socket.close()


def _error_event(error: ApiError) -> dict[str, Any]:
    return {"type": "error", **error.body}


class _Uncut:
    """Takes text in place of a cutter of sentences, and hands it on."""

    def __init__(self, text: LiveInput) -> None:
        self._text, self._begun = text, False

    def feed(self, text: str) -> list[str]:
        """Hand text on; return an empty sentence when there is something to speak."""
        self._text.put(text)
        begins = not self._begun and bool(text.strip())
        self._begun |= begins
        return [""] if begins else []

    def finish(self) -> list[str]:
        """End the text."""
        self._text.finish()
        return []


class _Session:
    """One connection: a reader that cuts sentences, and a speaker that takes them one by one.

    A text that goes to the pipeline as it comes is one empty sentence, which begins with the first character that can be spoken.
    """

    def __init__(self, server: Server, socket: WebSocket) -> None:
        self._server, self._socket = server, socket
        self._sentences: asyncio.Queue[str | None] = asyncio.Queue()
        self._text: LiveInput | None = None
        self._characters = 0
        self._key = key_of(socket).name

    async def run(self) -> None:
        """Serve the connection until ``input.done`` and the last sound."""
        try:
            await self._run()
        finally:
            self._server.realtime.memory.add(self._key, -self._characters)

    async def _run(self) -> None:
        kind, config = await self._receive(CONFIG_SECONDS)
        if kind != "session.config":
            raise invalid(f"{kind}: the first message must be session.config", "type")
        options = SpeechOptions.model_validate({"response_format": "pcm", **config})
        ignored = collect()
        speaker = Speaker(self._server, self._socket, options)
        self._text = text_input() if speaker.streams else None
        await self._tell(
            "session.started",
            response_format=options.response_format,
            media_type=speaker.media_type,
            **({"streams": True} if speaker.streams else {}),
            **({"x_omni_ignored": list(ignored)} if ignored else {}),
        )
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read())
            await self._speak(speaker, bool(options.words))
            reading.cancel()

    async def _read(self) -> None:
        cutter = SentenceCutter() if self._text is None else _Uncut(self._text)
        most = self._server.settings.limits.text_characters
        while True:
            kind, fields = await self._receive(IDLE_SECONDS)
            if kind == "input.text":
                text = fields.get("text")
                if not isinstance(text, str):
                    raise invalid("text: must be text", "text", "invalid_type")
                if not self._server.realtime.memory.has(self._key, len(text)):
                    raise ApiError(429, "The sessions of this server keep as much text as they may.", code="overloaded")
                self._server.realtime.memory.add(self._key, len(text))
                self._characters += len(text)
                if self._characters > most:
                    raise ApiError(413, f"text: over the limit of {most} characters", param="text")
                for sentence in cutter.feed(text):
                    self._sentences.put_nowait(sentence)
            elif kind == "input.done":
                for sentence in cutter.finish():
                    self._sentences.put_nowait(sentence)
                self._sentences.put_nowait(None)
                break
            elif kind == "session.config":
                raise invalid(
                    "session.config: only the first message may be one; connect again for other options", "type"
                )
            else:
                raise invalid(f"type: no event is called {shown(kind)}{did_you_mean(kind, _EVENTS)}", "type")
        # Later messages are not read, but the end of the connection is noticed.
        while True:
            with suppress(KeyError):  # a binary message
                await self._socket.receive_text()

    async def _speak(self, speaker: Speaker, tells_words: bool) -> None:
        count = chunks = 0
        while (sentence := await self._sentences.get()) is not None:
            await self._tell("audio.start", sentence_index=count, sentence_text=sentence)
            total = chunks = 0
            call = speaker.call(sentence) if self._text is None else speaker.open(self._text)
            async with aclosing(speaker.encoded(call, last=False)) as pieces:
                async for piece in pieces:
                    total += len(piece)
                    if tells_words:
                        await self._tell(
                            "audio.chunk", sentence_index=count, **chunk(chunks, piece, speaker.words.take())
                        )
                        chunks += 1
                    else:
                        await sent(self._socket.send_bytes(piece))
            await self._tell("audio.done", sentence_index=count, total_bytes=total)
            count += 1
        if rest := speaker.finish():
            if tells_words:
                await self._tell("audio.chunk", sentence_index=max(0, count - 1), **chunk(chunks, rest, []))
            else:
                await sent(self._socket.send_bytes(rest))
        await self._tell("session.done", total_sentences=count)

    async def _tell(self, kind: str, **fields: Any) -> None:
        await sent(self._socket.send_json({"type": kind, **fields}))

    async def _receive(self, seconds: float) -> tuple[str, dict[str, Any]]:
        try:
            async with asyncio.timeout(seconds):
                text = await self._socket.receive_text()
        except TimeoutError:
            raise ApiError(408, f"nothing has come for {seconds:g} s", code="idle_timeout") from None
        except KeyError:
            raise invalid("messages must be JSON text", code="invalid_json") from None
        fields = await read_event(text, self._server.settings.limits)
        check_text(fields, self._server.settings.limits.text_characters + 1000)
        kind = fields.pop("type", None)
        return str(kind), fields
