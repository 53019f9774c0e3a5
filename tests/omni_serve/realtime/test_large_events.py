"""Events as large as the protocol allows, larger ones, and many at once: what is refused is told, and the session goes on where it can."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import websockets
from omni_serve_clients import running_server, socket_to

from omni_core import AsyncPipe
from omni_serve import Settings, create_app, listening
from omni_serve.incoming import MESSAGE_BYTES, Room
from omni_serve.settings import Limits, RealtimeLimits

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOST_SOUND = 15 * 2**20
MOST_VALUES = Limits().json_values
TEXT = {"type": "session.update", "session": {"type": "realtime", "output_modalities": ["text"]}}
BY_HAND = {
    "type": "session.update",
    "session": {
        "type": "realtime",
        "output_modalities": ["text"],
        "audio": {"input": {"turn_detection": None, "format": {"type": "audio/pcmu"}}},
    },
}


def append(size: int) -> str:
    return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(size)).decode()})


def say(*content: Any) -> str:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}, *content]}
    return json.dumps({"type": "conversation.item.create", "item": item})


async def until(socket: Any, *kinds: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            event: dict[str, Any] = json.loads(await socket.recv())
            if event["type"] in kinds:
                return event


async def code_of_error(socket: Any) -> str:
    return str((await until(socket, "error", "response.done"))["error"]["code"])


async def answers(socket: Any) -> bool:
    """Return whether the session goes on: a question is answered."""
    await socket.send(say())
    await socket.send(json.dumps({"type": "response.create"}))
    done = await until(socket, "response.done", "error")
    return done["type"] == "response.done" and done["response"]["status"] == "completed"


@asynccontextmanager
async def session(
    pipe: AsyncPipe, first: dict[str, Any] = TEXT, path: str = "/v1/realtime", **limits: Any
) -> AsyncIterator[Any]:
    app = create_app(pipe, Settings(realtime=RealtimeLimits(**limits)))
    async with running_server(app) as address, websockets.connect(f"ws://{address}{path}", max_size=None) as socket:
        await socket.send(json.dumps(first))
        await until(socket, "session.updated", "session.started")
        yield socket
    async with asyncio.timeout(60):
        while app.state.server.realtime.count:
            await asyncio.sleep(0.01)
    assert app.state.server.realtime.memory.used == 0


@pytest.mark.parametrize("size", [800_000, MOST_SOUND])
async def test_sound_as_long_as_the_protocol_allows_is_taken(pipe: AsyncPipe, size: int) -> None:
    async with session(pipe) as socket:
        await socket.send(append(size))
        assert await answers(socket)


async def test_a_turn_by_hand_that_is_too_long_is_told_once(pipe: AsyncPipe) -> None:
    async with session(pipe, BY_HAND, turn_seconds=2.0) as socket:
        await socket.send(append(MOST_SOUND))
        assert await code_of_error(socket) == "input_audio_buffer_full"
        assert await answers(socket)


async def test_sound_that_is_no_base64_at_its_end_is_not_taken_in_part(pipe: AsyncPipe) -> None:
    async with session(pipe, BY_HAND) as socket:
        for broken in (append(3_000_000)[:-2] + '@"}', append(2**20)[:-2] + 'AAAA"}'):
            await socket.send(broken)
            assert await code_of_error(socket) == "invalid_value"
            await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
            assert await code_of_error(socket) == "input_audio_buffer_commit_empty"


@pytest.mark.parametrize("fragmented", [False, True])
async def test_a_larger_event_is_told_before_the_connection_is_closed(pipe: AsyncPipe, fragmented: bool) -> None:
    text = append(MOST_SOUND + 2**20)
    assert len(text) > MESSAGE_BYTES
    async with session(pipe) as socket:
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await asyncio.gather(
                socket.send([text[at : at + 2**20] for at in range(0, len(text), 2**20)] if fragmented else text),
                _refused(socket),
            )
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def _refused(socket: Any) -> None:
    assert await code_of_error(socket) == "event_too_large"
    async for _ in socket:
        pass
    raise AssertionError("the connection was closed in order")


async def test_an_item_over_the_limit_of_the_history_is_told(pipe: AsyncPipe) -> None:
    sound = {"type": "input_audio", "audio": base64.b64encode(bytes(600_000)).decode()}
    async with session(pipe, BY_HAND, history_mib=1) as socket:
        await socket.send(say(sound))  # a byte of G.711 is 4 of those that are kept
        assert await code_of_error(socket) == "item_too_large"
        asked = {"input": [json.loads(say(sound))["item"]], "conversation": "none"}
        await socket.send(json.dumps({"type": "response.create", "response": asked}))
        error = (await until(socket, "error"))["error"]
        assert (error["code"], error["param"]) == ("item_too_large", "response.input[0].content[1].audio")
        assert await answers(socket)


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/live/sessions"])
@pytest.mark.parametrize(
    "odd",
    [
        '{"type": "x", "x": [' + "[]," * MOST_VALUES + "[]]}",
        '{"type": "x", "x": "' + "a," * MOST_VALUES + '", "y": [' + "{}," * MOST_VALUES + "{}]}",
        '{"type": "x", "x": "' + r"\"," * 600_000 + '"}',
        '{"type": "x", "x": "' + "a" * 1_100_000 + '"}',
    ],
    ids=["lists", "objects", "quotes", "text"],
)
async def test_an_event_that_would_take_the_server_long_is_refused(pipe: AsyncPipe, path: str, odd: str) -> None:
    first = {"type": "session.start", "session": {"model": "tones"}} if "live" in path else TEXT
    async with session(pipe, first, path) as socket:
        await socket.send(odd)
        assert await code_of_error(socket) in ("too_many_values", "too_large")
        await socket.send('{"type": "session.close"}' if "live" in path else '{"type": "input_audio_buffer.clear"}')
        await until(socket, "session.closed", "input_audio_buffer.cleared")


async def test_a_text_with_many_commas_is_one_value(pipe: AsyncPipe) -> None:
    async with session(pipe) as socket:
        await socket.send(say({"type": "input_text", "text": "1," * 2 * MOST_VALUES}))
        assert (await until(socket, "error", "conversation.item.done"))["type"] == "conversation.item.done"


async def test_sessions_share_a_bound_on_what_they_keep(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(realtime=RealtimeLimits(memory_mib=1)))
    memory = app.state.server.realtime.memory
    async with socket_to(app, "/v1/realtime") as one, socket_to(app, "/v1/realtime") as other:
        assert (await one.receive_json(), await other.receive_json())[0]["type"] == "session.created"
        for each in (one, other):
            await each.send_json(json.loads(say({"type": "input_text", "text": "a" * 600_000})))
        assert [(await one.receive_json())["type"] for _ in range(2)] == [
            "conversation.item.added",
            "conversation.item.done",
        ]
        assert (await other.receive_json())["error"]["code"] == "overloaded"
        assert 600_000 < memory.used < 601_000
        await other.send_json(BY_HAND)
        assert (await other.receive_json())["type"] == "session.updated"
        await other.send_json(json.loads(append(60_000)))  # 7.5 s, of 64 KB each
        assert (await other.receive_json())["error"]["code"] == "overloaded"
    assert memory.used == 0


async def test_large_events_share_a_budget_and_small_ones_need_none(
    pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(2**20)
    monkeypatch.setattr(listening, "Room", lambda: room)
    async with session(pipe) as socket:
        await socket.send(append(2**18))
        assert await answers(socket)
        assert room.used == 0
        await socket.send(append(2**19))
        assert await code_of_error(socket) == "overloaded"
        with pytest.raises(websockets.ConnectionClosed):
            await until(socket, "session.updated")
        assert room.used == 0


async def test_a_key_has_half_of_the_budget() -> None:
    room = Room(100)
    assert room.take("a", 50)
    assert not room.take("a", 1)
    assert room.take("b", 50)
    assert not room.take("c", 1)
    room.give("a", 50)
    assert room.take("c", 50)
    assert room.used == 100


async def test_thousands_of_fragments_are_one_message(pipe: AsyncPipe) -> None:
    text = json.dumps({"type": "input_audio_buffer.clear"})
    async with session(pipe) as socket:
        await socket.send([*text, *[""] * 50_000, " "])
        await until(socket, "input_audio_buffer.cleared")
