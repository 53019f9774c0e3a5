"""``/v1/live/sessions`` as OpenAI's client uses it: sound flows, at the pace at which it is heard."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
from omni_serve_clients import running_server, socket_to
from serve_stages import RATE

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.encoders import pcm16

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "the secret of live"


@pytest.fixture(scope="module")
def spoken(pipe: AsyncPipe) -> Application:
    return create_app(pipe, Settings(keys={"mine": SECRET}))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sdk(spoken: Application) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        running_server(spoken) as address,
        openai.AsyncOpenAI(api_key=SECRET, base_url=f"http://{address}/v1", max_retries=0) as client,
    ):
        yield client


def voice(seconds: float, rate: int = RATE) -> str:
    time = np.arange(int(seconds * rate)) / rate
    return base64.b64encode(pcm16((0.3 * np.sin(1400 * time) * (time % 0.2 < 0.15)).astype(np.float32))).decode()


def silence(seconds: float, rate: int = RATE) -> str:
    return base64.b64encode(bytes(int(seconds * rate) * 2)).decode()


async def until(connection: Any, *kinds: str) -> list[Any]:
    """Return the events until there was one of each kind."""
    found: list[Any] = []
    async with asyncio.timeout(60):
        while not {event.type for event in found} >= set(kinds):
            found.append(await connection.recv())
    return found


async def test_a_spoken_turn_and_the_end(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.live.connect() as connection:
        sound: Any = {"format": {"type": "audio/pcm", "rate": 16_000}, "output": {"voice": "high"}}
        await connection.session.start(session={"model": "tones", "instructions": "Be brief.", "audio": sound})
        (started,) = await until(connection, "session.started")
        assert (started.session.status, started.session.model) == ("active", "tones")
        for data in (silence(0.4, 16_000), voice(0.6, 16_000), silence(0.7, 16_000)):
            await connection.session.input_audio.append(audio=data)
        sound_and_texts = ("output_audio.delta", "input_transcript.delta", "output_transcript.delta", "usage.updated")
        found = await until(connection, *(f"session.{kind}" for kind in sound_and_texts))
        written = next(event for event in found if event.type == "session.input_transcript.delta")
        assert 0 < written.start_ms < written.end_ms
        await connection.session.close()
        closed = (await until(connection, "session.closed"))[-1]
        assert closed.reason == "close_requested"
        assert closed.usage.seconds > 0


async def test_speech_stops_when_the_user_speaks(spoken: Application) -> None:
    headers = {"authorization": f"Bearer {SECRET}"}
    async with socket_to(spoken, "/v1/live/sessions", **headers) as socket:
        await socket.send_json({"type": "session.start", "session": {"model": "tones"}})
        assert (await socket.receive_json())["type"] == "session.started"
        await socket.send_json({"type": "session.instructions.append", "content": "word " * 100})
        assert (await socket.receive_json())["type"] == "session.instructions.appended"
        for data in (silence(0.3), voice(0.5), silence(0.7)):
            await socket.send_json({"type": "session.input_audio.append", "audio": data})
        events = [await socket.receive_json()]
        while events[-1]["type"] != "session.output_audio.delta":
            events.append(await socket.receive_json())
        await socket.send_json({"type": "session.input_audio.append", "audio": voice(0.3)})
        # The answer has ten seconds and is sent as it is played: what is left of it never comes.
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(0.5):
                    events.append(json.loads((await socket.from_app.get())["text"]))
        sent = sum(len(base64.b64decode(each["delta"])) for each in events if each["type"].endswith("audio.delta"))
        assert 0 < sent / 2 / RATE < 9


async def test_what_is_not_honoured_is_named(spoken: Application) -> None:
    headers = {"authorization": f"Bearer {SECRET}"}
    for first, param in (
        ({"type": "session.update"}, "type"),
        ({"type": "session.start", "session": {}}, "session.model"),
        ({"type": "session.start", "session": {"model": "tones", "store": True}}, "session.store"),
        ({"type": "session.start", "session": {"model": "tones", "audio": {"formats": 1}}}, "session.audio.formats"),
        ({"type": "session.start", "session": {"model": "gpt-live-1"}}, "session.model"),
    ):
        async with socket_to(spoken, "/v1/live/sessions", **headers) as socket:
            await socket.send_json(first)
            assert (await socket.receive_json())["error"]["param"] == param
            assert (await socket.receive())["type"] == "websocket.close"
    async with socket_to(spoken, "/v1/live/sessions", **headers) as socket:
        item = {"role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}
        await socket.send_json({"type": "session.start", "session": {"model": "tones", "input": [item]}})
        await socket.receive_json()
        for event, param in (
            ({"type": "response.create"}, "type"),
            ({"type": "session.input_audio.apend"}, "type"),
            ({"type": "session.input_audio.append", "audio": "?"}, "audio"),
            ({"type": "session.instructions.append", "text": "x"}, "content"),
        ):
            await socket.send_json({**event, "event_id": "e"})
            error = await socket.receive_json()
            assert error["error"]["param"] == param
            assert error["client_event_id"] == "e"
        await socket.send_json({"type": "session.input_audio.mute"})
        assert (await socket.receive_json())["type"] == "session.input_audio.muted"
        await socket.send_json({"type": "session.input_audio.append", "audio": "?"})
        await socket.send_json({"type": "session.input_audio.unmute"})
        assert (await socket.receive_json())["type"] == "session.input_audio.unmuted"
