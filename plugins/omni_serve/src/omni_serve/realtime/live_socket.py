"""``WS /v1/live/sessions``: a session of the Live API over a WebSocket, with speech sent at the pace at which it is played."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

from fastapi import APIRouter
from starlette.websockets import WebSocket

from omni_serve.auth import subprotocol
from omni_serve.errors import ApiError, invalid
from omni_serve.json_input import check_text, read_event
from omni_serve.realtime.actions import Action
from omni_serve.realtime.config import SessionConfig
from omni_serve.realtime.events import error_event, new_id
from omni_serve.realtime.live import Live
from omni_serve.realtime.pipeline import offer_of
from omni_serve.realtime.session import Session
from omni_serve.realtime.socket import Connection
from omni_serve.realtime.vad import DETECTORS
from omni_serve.server import Server, key_of, server_of
from omni_serve.sockets import ended

router = APIRouter()

START_SECONDS = 10.0
"""The time until ``session.start`` must have come."""

LEAD, PIECE = 0.25, 0.1
"""Seconds of speech that are sent ahead of its time, and in one event."""


@router.websocket("/v1/live/sessions")
async def live(socket: WebSocket) -> None:
    """Converse by voice, without turns on the wire."""
    server, key = server_of(socket), key_of(socket)
    await socket.accept(subprotocol(socket.scope.get("subprotocols") or []))
    async with ended(socket, error_event):
        try:
            with server.enter_session(key, "/v1/live/sessions"):
                await LiveConnection(server, socket, await _started(server, socket)).run()
        except BaseExceptionGroup as group:
            if group.split(_Closed)[0] is None:
                raise
            await socket.close()


class _Closed(Exception):
    """The client has asked for the end."""


async def _started(server: Server, socket: WebSocket) -> Live:
    """Return the session that the first event asks for."""
    try:
        async with asyncio.timeout(START_SECONDS):
            event = await read_event(await socket.receive_text(), server.settings.limits)
    except TimeoutError:
        raise ApiError(408, f"session.start has not come within {START_SECONDS:g} s", code="start_timeout") from None
    except KeyError:
        raise invalid("events must be JSON text", code="invalid_json") from None
    check_text(event, server.settings.limits.text_characters)
    offer, limits = offer_of(server, key_of(socket)), server.settings.realtime
    expires = int(time.time() + limits.session_seconds)

    def make(config: SessionConfig) -> Session:
        return Session(
            offer, config, limits, DETECTORS[limits.detector], expires, key_of(socket).name, server.realtime.memory
        )

    return Live.start(event, offer, make, asyncio.get_running_loop().time(), expires)


class LiveConnection(Connection):
    """One connected client."""

    def __init__(self, server: Server, socket: WebSocket, live: Live) -> None:
        super().__init__(server, socket, live.session)
        self._live = live
        self._speech: asyncio.Queue[bytes] = asyncio.Queue()
        self._until = 0.0
        self._answer = 0

    def _greet(self) -> None:
        self._outbox.put_nowait(self._live.started())
        self._run(new_id("player"), self._play())

    def _take(self, event: dict[str, Any]) -> list[Action]:
        actions, answers = self._live.receive(event, self._now())
        for answer in answers:
            self._outbox.put_nowait(answer)
            if answer["type"] == "session.closed":
                self._run(new_id("end"), self._close())
        return actions

    async def _close(self) -> None:
        await self._outbox.join()
        raise _Closed

    def _emit(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "response.output_audio.delta":
            self._speech.put_nowait(base64.b64decode(event["delta"]))
            return
        if kind == "input_audio_buffer.speech_started":
            self._hush()
        translated = self._live.translate(event, max(self._now(), self._until))
        if translated is not None:
            self._outbox.put_nowait(translated)

    def _hush(self) -> None:
        """Send no more of what has been made."""
        while not self._speech.empty():
            self._speech.get_nowait()
        self._answer += 1

    async def _play(self) -> None:
        wire = self._live.asked.audio.format.wire
        step = int(wire.rate * PIECE) * (2 if wire.law is None else 1)
        while True:
            data, answer = await self._speech.get(), self._answer
            for start in range(0, len(data), step):
                now = self._now()
                self._until = max(self._until, now)
                if self._until - now > LEAD:
                    await asyncio.sleep(self._until - now - LEAD)
                if answer != self._answer:
                    break
                piece, before = data[start : start + step], self._until
                self._until += wire.milliseconds(len(piece)) / 1000
                times = [int((each - self._live.began) * 1000) for each in (before, self._until)]
                self._outbox.put_nowait(
                    {
                        "type": "session.output_audio.delta",
                        "delta": base64.b64encode(piece).decode(),
                        "start_ms": times[0],
                        "end_ms": times[1],
                    }
                )
