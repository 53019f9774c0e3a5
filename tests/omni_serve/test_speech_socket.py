"""Text in pieces, over a voice that takes text as a stream: one request, sound at once, however the text was cut."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from attrs import evolve
from live_input_stages import SPELLING, VOICE_RATE, spelled, spelling_pipeline
from omni_serve_clients import Connection, socket_to

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.speech import Speaker, SpeechOptions

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "Hello there. How are you? Fine."
PATH = "/v1/audio/speech/stream"
CONFIG = {"type": "session.config", "model": "spell", "voice": "low", "response_format": "pcm"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def spelling() -> AsyncIterator[AsyncPipe]:
    async with open_async(spelling_pipeline()) as pipe:
        yield pipe


@pytest.fixture(scope="module")
def app(spelling: AsyncPipe) -> Application:
    return create_app(spelling, Settings())


async def begin(socket: Connection, **fields: Any) -> dict[str, Any]:
    await socket.send_json({**CONFIG, **fields})
    return await socket.receive_json()


async def say(socket: Connection, *texts: str) -> None:
    for text in texts:
        await socket.send_json({"type": "input.text", "text": text})


async def rest(socket: Connection) -> tuple[list[dict[str, Any]], bytes]:
    """Return the events until the end, and the frames joined."""
    found: list[dict[str, Any]] = []
    data = b""
    while not found or found[-1]["type"] not in ("session.done", "error"):
        message = await socket.receive()
        if message.get("bytes") is not None:
            data += message["bytes"]
        else:
            found.append(json.loads(message["text"]))
    return found, data


async def nothing_runs(app: Application) -> None:
    server = app.state.server
    async with asyncio.timeout(30):
        while server.admission.running or server.realtime.count or server.realtime.memory.used:
            await asyncio.sleep(0.01)
    assert server.metrics.live.labels("text")._value.get() == 0


async def test_sound_comes_before_the_sentence_has_ended(app: Application) -> None:
    async with socket_to(app, PATH) as socket:
        assert (await begin(socket))["streams"] is True
        await say(socket, " ", "", "He")
        started = await socket.receive_json()
        assert started == {"type": "audio.start", "sentence_index": 0, "sentence_text": ""}
        first = (await socket.receive())["bytes"]
        assert len(first) > 2000
        await say(socket, "llo")
        await socket.send_json({"type": "input.done"})
        events, data = await rest(socket)
        assert [event["type"] for event in events] == ["audio.done", "session.done"]
        assert 0 < events[0]["total_bytes"] <= len(first + data)
        assert events[1]["total_sentences"] == 1
    await nothing_runs(app)


@pytest.mark.parametrize("form", ["pcm", "wav"])
async def test_no_cut_of_the_text_changes_the_sound(app: Application, form: str) -> None:
    found = set()
    for seed in range(8):
        choice, pieces, left = random.Random(seed), list[str](), TEXT
        while left:
            size = choice.randint(0, len(left)) if seed else len(left)
            pieces.append(left[:size])
            left = left[size:]
        async with socket_to(app, PATH) as socket:
            await begin(socket, response_format=form)
            await say(socket, *pieces)
            await socket.send_json({"type": "input.done"})
            events, data = await rest(socket)
            assert events[-1]["type"] == "session.done"
            found.add(data)
    assert len(found) == 1
    if form == "pcm":
        assert len(found.pop()) // 2 == len(spelled(TEXT)) * 24_000 // VOICE_RATE


async def test_no_text_is_no_sound_and_no_error(app: Application) -> None:
    for texts in ((), ("", " \n")):
        async with socket_to(app, PATH) as socket:
            await begin(socket)
            await say(socket, *texts)
            await socket.send_json({"type": "input.done"})
            assert (await rest(socket))[0] == [{"type": "session.done", "total_sentences": 0}]


async def test_an_error_of_the_voice_ends_the_session(app: Application) -> None:
    async with socket_to(app, PATH) as socket:
        await begin(socket)
        await say(socket, "Hello", "!")
        events, _ = await rest(socket)
        assert events[-1]["error"]["message"].startswith("input: an exclamation")
    await nothing_runs(app)


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing(app: Application, spelling: AsyncPipe) -> None:
    for _ in range(20):
        async with socket_to(app, PATH) as socket:
            await begin(socket)
            await say(socket, "Hel")
            await socket.receive_json()
            await socket.receive()
    await nothing_runs(app)
    async with asyncio.timeout(30):
        while any(parts.get("spell", {}).get("running") for parts in (await spelling.statistics()).values()):
            await asyncio.sleep(0.01)


async def test_what_is_no_voice_for_a_stream_gets_sentences(spelling: AsyncPipe, app: Application) -> None:
    """A pipeline whose text is not what it speaks, or which takes whole texts."""
    server, options = app.state.server, SpeechOptions(model="spell")
    connection: Any = type("C", (), {"scope": {"omni.key": None}, "headers": {}})()
    for interface, streams in (
        (SPELLING, True),
        (evolve(SPELLING, input_streams=[]), False),
        (evolve(SPELLING, input_streams=["data"]), False),
        (evolve(SPELLING, roles={**SPELLING.roles, "text": "spell"}, prompts={"speech": "{text}"}), False),
    ):
        assert Speaker(evolve(server, interface=interface), connection, options).streams is streams


async def test_only_the_first_message_is_a_configuration(app: Application) -> None:
    async with socket_to(app, PATH) as socket:
        await begin(socket)
        await socket.send_json(CONFIG)
        events, _ = await rest(socket)
        assert events[-1]["error"]["message"].startswith("session.config: only the first message may be one")
