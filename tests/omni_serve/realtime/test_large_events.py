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
from starlette.types import Receive, Scope, Send
from websockets.frames import Frame, Opcode

from omni_core import AsyncPipe
from omni_serve import Settings, create_app, incoming, listening
from omni_serve.incoming import MESSAGE_BYTES
from omni_serve.room import Room
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
    pieces = [text[at : at + 2**20] for at in range(0, len(text), 2**20)]
    async with session(pipe) as socket:
        sending = asyncio.ensure_future(socket.send(pieces if fragmented else text))
        assert await code_of_error(socket) == "event_too_large"
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await until(socket, "session.updated")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        await asyncio.gather(sending, return_exceptions=True)


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
    app = create_app(pipe, Settings(realtime=RealtimeLimits(memory_mib=2)))
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
        assert 600_000 < memory.used < 602_000
        await other.send_json(BY_HAND)
        assert (await other.receive_json())["type"] == "session.updated"
        await other.send_json(json.loads(append(60_000)))  # 7.5 s, of 64 KB each
        assert (await other.receive_json())["error"]["code"] == "overloaded"
    assert memory.used == 0


async def test_large_events_share_a_budget_and_small_ones_need_none(
    pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(2**20)
    monkeypatch.setattr(listening, "Room", lambda most: room)
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
    room.add("a", 50)
    assert not room.has("a", 1)
    assert room.has("b", 50)
    room.add("b", 40)
    assert room.has("c", 10)
    assert not room.has("c", 11)
    room.add("a", -50)
    assert room.has("c", 50)


async def test_thousands_of_fragments_are_one_message(pipe: AsyncPipe) -> None:
    text = json.dumps({"type": "input_audio_buffer.clear"})
    async with session(pipe) as socket:
        await socket.send([*text, *[""] * 50_000, " "])
        await until(socket, "input_audio_buffer.cleared")


async def test_the_text_of_speech_sockets_counts_too(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(realtime=RealtimeLimits(memory_mib=1)))
    memory = app.state.server.realtime.memory
    async with socket_to(app, "/v1/audio/speech/stream") as socket:
        await socket.send_json({"type": "session.config", "model": "tones"})
        assert (await socket.receive_json())["type"] == "session.started"
        await socket.send_json({"type": "input.text", "text": "a" * 600_000})
        assert (await socket.receive_json())["error"]["code"] == "overloaded"
    assert memory.used == 0


async def test_an_event_has_as_many_images_and_recordings_as_a_request(pipe: AsyncPipe) -> None:
    sound = {"type": "input_audio", "audio": base64.b64encode(bytes(4800)).decode()}
    app = create_app(pipe, Settings(limits=Limits(media_parts=3)))
    async with socket_to(app, "/v1/realtime") as socket:
        await socket.receive_json()
        for count, kind in ((3, "conversation.item.added"), (4, "error")):
            await socket.send_json(json.loads(say(*[sound] * count)))
            found = await socket.receive_json()
            if found["type"] == "conversation.item.done":
                found = await socket.receive_json()
            assert found["type"] == kind
        assert found["error"]["param"] == "item.content[4]"


async def test_a_client_that_leaves_in_a_large_event_gives_its_room_back(
    pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(2**26)
    monkeypatch.setattr(listening, "Room", lambda most: room)
    async with (
        running_server(create_app(pipe, Settings())) as address,
        websockets.connect(f"ws://{address}/v1/realtime") as socket,
    ):
        await socket.recv()
        text = append(2**22).encode()
        socket.transport.write(Frame(Opcode.TEXT, text).serialize(mask=True)[:-1000])
        async with asyncio.timeout(60):
            while room.used < 2**22:
                await asyncio.sleep(0.01)
            socket.transport.abort()
            while room.used:
                await asyncio.sleep(0.01)


async def test_a_large_event_that_comes_too_slowly_is_told(pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MESSAGE_SECONDS", 0.3)
    async with session(pipe) as socket:
        socket.transport.write(Frame(Opcode.TEXT, append(2**20).encode()).serialize(mask=True)[:-1000])
        assert await code_of_error(socket) == "event_timeout"


async def test_what_a_busy_application_has_not_read_is_given_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        listening, "PING_SECONDS", 2.0
    )  # while nothing is read, only this tells that the client has gone
    room, done = Room(2**26), asyncio.Event()
    monkeypatch.setattr(listening, "Room", lambda most: room)

    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if scope["type"] == "lifespan":
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await send({"type": "websocket.accept"})
            await receive()  # one is being worked on, another waits
            await done.wait()

    async with running_server(busy) as address, websockets.connect(f"ws://{address}/") as socket:
        for _ in range(2):
            await socket.send(append(2**20))
        async with asyncio.timeout(60):
            while room.used < 2 * 2**20:
                await asyncio.sleep(0.01)
            socket.transport.abort()
            while room.used:
                await asyncio.sleep(0.01)
        done.set()
