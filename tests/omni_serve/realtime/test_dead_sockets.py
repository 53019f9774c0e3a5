"""Two hundred clients that vanish in the middle, on each kind of WebSocket, leave nothing: no session, request, task or object."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import random
from typing import Any

import numpy as np
import pytest
import websockets
from omni_serve_clients import running_server, socket_to
from serve_stages import RATE
from starlette.types import Message, Receive, Scope, Send

from omni_core import AsyncPipe
from omni_serve import Settings, create_app, listening, sockets
from omni_serve.app import Application
from omni_serve.encoders import pcm16
from omni_serve.realtime.session import Session
from omni_serve.realtime.socket import Connection
from omni_serve.settings import RealtimeLimits
from omni_serve.speech_socket import _Session

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORDS = "word " * 60
ENDPOINTS = ("/v1/realtime", "/v1/live/sessions", "/v1/audio/speech/stream")


def sound() -> str:
    moments = np.arange(int(1.3 * RATE)) / RATE
    voice = (0.3 * np.sin(1400 * moments) * (moments % 0.2 < 0.15) * (moments < 0.6)).astype(np.float32)
    return base64.b64encode(pcm16(voice)).decode()


SOUND = sound()
SAYS: dict[str, list[dict[str, Any]]] = {
    "/v1/realtime": [
        {"type": "session.update", "session": {"type": "realtime", "pause": 0.01, "audio": {"input": {"transcription": {}}}}},
        {"type": "conversation.item.create",
         "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": WORDS}]}},
        {"type": "response.create"},
        {"type": "input_audio_buffer.append", "audio": SOUND},
        {"type": "input_audio_buffer.append", "audio": SOUND},
    ],
    "/v1/live/sessions": [
        {"type": "session.start", "session": {"model": "tones", "instructions": WORDS}},
        {"type": "session.input_audio.append", "audio": SOUND},
        {"type": "session.instructions.append", "content": WORDS},
        {"type": "session.input_audio.append", "audio": SOUND},
    ],
    "/v1/audio/speech/stream": [
        {"type": "session.config", "model": "tones", "pause": 0.01},
        {"type": "input.text", "text": WORDS + ". "},
        {"type": "input.text", "text": WORDS + ". "},
        {"type": "input.done"},
    ],
}  # fmt: skip


async def die(address: str, path: str, chance: random.Random) -> None:
    """Say some of it, listen for a while, and vanish: no close of the WebSocket, no end of the connection."""
    socket = await websockets.connect(f"ws://{address}{path}", open_timeout=20)
    says = SAYS[path]

    async def listen() -> None:
        with contextlib.suppress(websockets.ConnectionClosed):
            async for _ in socket:
                pass

    listening = asyncio.ensure_future(listen())
    for event in says[: chance.randint(0, len(says))]:
        await socket.send(json.dumps(event))
        await asyncio.sleep(chance.choice((0.0, 0.01, 0.05)))
    await asyncio.sleep(chance.random() * 0.3)
    socket.transport.abort()
    await listening


async def nothing_left(pipe: AsyncPipe, app: Application) -> None:
    server = app.state.server
    async with asyncio.timeout(60):
        while server.realtime.count or server.admission.running or server.admission.waiting:
            await asyncio.sleep(0.01)
        while (await pipe.statistics())["coordinator"]["requests"]["running"]:
            await asyncio.sleep(0.02)
        while any(each.get("in_flight") for stages in (await pipe.statistics()).values() for each in stages.values()):
            await asyncio.sleep(0.02)


async def test_two_hundred_dead_sockets_leave_nothing(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(realtime=RealtimeLimits(sessions_per_key=256)))
    chance = random.Random(1)
    aborted = (await pipe.statistics())["coordinator"]["requests"]["aborted"]
    async with running_server(app) as address:
        before = asyncio.all_tasks()
        paths = [ENDPOINTS[number % 3] for number in range(201)]
        for start in range(0, len(paths), 40):
            async with asyncio.TaskGroup() as group:
                for path in paths[start : start + 40]:
                    group.create_task(die(address, path, chance))
        await nothing_left(pipe, app)
        async with asyncio.timeout(60):
            while left := asyncio.all_tasks() - before:
                await asyncio.wait(left, timeout=1)
    server = app.state.server
    assert (await pipe.statistics())["coordinator"]["requests"]["aborted"] > aborted + 5
    assert not server.realtime._by_key
    assert {path: server.metrics.sessions.labels(path)._value.get() for path in ENDPOINTS} == dict.fromkeys(
        ENDPOINTS, 0
    )
    async with asyncio.timeout(60):
        while [each for each in gc.get_objects() if type(each) in (Session, Connection, _Session)]:
            await asyncio.sleep(0.05)
            gc.collect()


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/audio/speech/stream"])
async def test_a_client_that_vanishes_is_missed(pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """It reads nothing any more, and so answers no ping, and does not close: the connection is half open."""
    monkeypatch.setattr(listening, "PING_SECONDS", 0.1)
    app = create_app(pipe)
    async with running_server(app) as address:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        key = base64.b64encode(bytes(16)).decode()
        head = f"GET {path} HTTP/1.1\r\nhost: {address}\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
        writer.write(f"{head}sec-websocket-key: {key}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        opened = app.state.server.metrics.sessions.labels(path)._value
        async with asyncio.timeout(60):
            while not opened.get():
                await asyncio.sleep(0)
            while opened.get():
                await asyncio.sleep(0.01)
        writer.transport.abort()


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_client_that_does_not_read_is_let_go(
    pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(sockets, "SEND_SECONDS", 0.05)
    monkeypatch.setattr(sockets, "END_SECONDS", 0.05)
    app = create_app(pipe)

    async def full(scope: Scope, receive: Receive, send: Send) -> None:
        async def taken(message: Message) -> None:
            if message["type"] == "websocket.send":
                await asyncio.Event().wait()
            await send(message)

        await app(scope, receive, taken)

    async with asyncio.timeout(60), socket_to(full, path) as socket:
        for event in SAYS[path]:
            await socket.send_json(event)
        await socket.task
    await nothing_left(pipe, app)
