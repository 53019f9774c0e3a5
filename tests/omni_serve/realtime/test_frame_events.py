"""Frames over the socket: each is checked as an image is, one that is wrong is an error of its own, and too many are not decoded."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import openai
import pytest
from omni_serve_clients import running_server, socket_to
from PIL import Image
from serve_stages import RATE

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.auth import ANYONE
from omni_serve.encoders import pcm16
from omni_serve.media import share_of
from omni_serve.realtime import pipeline
from omni_serve.settings import Limits, RealtimeLimits

pytestmark = pytest.mark.asyncio(loop_scope="session")

BY_HAND: Any = {"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"turn_detection": None}}}


def picture(size: tuple[int, int] = (64, 48), form: str = "JPEG", shade: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (shade, 90, 200)).save(file, form)
    return file.getvalue()


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def frame(data: bytes | str, at: float | None = None, **more: Any) -> Any:
    image = text_of(data) if isinstance(data, bytes) else data
    event = {"type": "input_image_buffer.append", "image": image, **more}
    return event if at is None else {**event, "time_ms": at}


def sound(seconds: float = 0.5) -> Any:
    time = np.arange(int(seconds * RATE)) / RATE
    data = pcm16((0.3 * np.sin(1400 * time)).astype(np.float32))
    return {"type": "input_audio_buffer.append", "audio": text_of(data)}


@asynccontextmanager
async def session(pipe: AsyncPipe, settings: Settings | None = None) -> AsyncIterator[Any]:
    app = create_app(pipe, settings or Settings())
    async with socket_to(app, "/v1/realtime") as socket:
        socket.app = app
        await socket.receive_json()
        await socket.send_json({"type": "session.update", "session": BY_HAND})
        await socket.receive_json()
        yield socket
    assert app.state.server.realtime.memory.used == 0
    assert app.state.server.media.held == 0


async def answer(socket: Any) -> str:
    """Return the reply to what has been said and shown."""
    await socket.send_json({"type": "input_audio_buffer.commit"})
    await socket.send_json({"type": "response.create"})
    while (event := await socket.receive_json())["type"] != "response.done":
        assert event["type"] not in ("error", "input_image_buffer.dropped"), event
    text: str = event["response"]["output"][0]["content"][0]["text"]
    return text


async def test_a_client_shows_what_it_speaks_of(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings())
    async with (
        running_server(app) as address,
        openai.AsyncOpenAI(api_key="none", base_url=f"http://{address}/v1", max_retries=0) as sdk,
        sdk.realtime.connect(model="tones") as connection,
    ):
        await connection.recv()
        await connection.session.update(session=BY_HAND)
        await connection.recv()
        for number in range(3):
            await connection.send(frame(picture(shade=number), number * 300))
            await connection.send(sound(0.3))
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        found: list[Any] = []
        async with asyncio.timeout(60):
            while not found or found[-1].type != "response.done":
                found.append(await connection.recv())
        added = next(event for event in found if event.type == "conversation.item.added")
        assert added.item.content[1].to_dict() == {"type": "input_video", "times_ms": [0, 300, 600]}
        assert found[-1].response.output[0].content[0].text == "video:3"


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
async def test_frames_are_taken_in_base64_and_as_urls(pipe: AsyncPipe, form: str) -> None:
    async with session(pipe) as socket:
        url = f"data:image/{form.lower()};base64,{text_of(picture(form=form))}"
        for event in (frame(picture(form=form), 0), sound(), frame(url, 400)):
            await socket.send_json(event)
        assert await answer(socket) == "video:2"


WRONG = {
    "damaged": (frame(picture((640, 480))[:900]), "invalid_image"),
    "no picture": (frame(b"no picture"), "invalid_image"),
    "no base64": (frame("?!"), "invalid_value"),
    "empty": (frame(""), "invalid_value"),
    "none": ({"type": "input_image_buffer.append"}, "invalid_type"),
    "a number": (frame("", image=3), "invalid_type"),
    "another kind": (frame("data:video/mp4;base64,AAAA"), "invalid_image"),
    "huge": (frame(picture((8000, 8000), "PNG")), "media_too_large"),
    "a time": (frame(picture(), -5), "invalid_value"),
    "misspelt": (frame(picture(), time_sm=4), "unknown_parameter"),
}


async def test_a_frame_that_is_wrong_is_an_error_and_nothing_else(pipe: AsyncPipe) -> None:
    async with session(pipe) as socket:
        await socket.send_json(frame(picture(), 0))
        await socket.send_json(sound())
        for name, (event, code) in WRONG.items():
            await socket.send_json({**event, "event_id": name})
            told = await socket.receive_json()
            assert (told["type"], told["error"]["event_id"], told["error"]["code"]) == ("error", name, code), told
            assert told["error"]["message"].startswith(("image: ", "image (image): ", "time_ms: ", "time_sm: ")), told
            assert told["error"]["param"] in ("image", "time_ms", "time_sm")
        await socket.send_json(frame(picture(), 400))
        assert await answer(socket) == "video:2"


async def test_frames_that_are_dropped_are_not_decoded(pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    check = pipeline.check_image
    monkeypatch.setattr(pipeline, "check_image", lambda data, *more: decoded.append(len(data)) or check(data, *more))
    async with session(pipe) as socket:
        await socket.send_json(sound())
        for number in range(200):
            await socket.send_json(frame(picture(), number))
        told = await socket.receive_json()
        assert (told["type"], told["reason"]) == ("input_image_buffer.dropped", "rate")
        await socket.send_json(frame("?!", 10))
        assert await answer(socket) == "video:1"
    assert len(decoded) == 1


async def test_a_frame_waits_a_moment_for_room_and_the_sound_no_longer(
    pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "FRAME_WAIT", 0.05)
    async with session(pipe) as socket:
        server = socket.app.state.server
        others = await server.media.take(ANYONE, 1.0)
        await socket.send_json(frame(picture(), 0, event_id="waits"))
        await socket.send_json(sound())
        told = await socket.receive_json()
        assert (told["error"]["code"], told["error"]["event_id"]) == ("overloaded", "waits")
        others.leave()
        await socket.send_json(frame(picture(), 0))
        assert await answer(socket) == "video:1"


async def test_the_session_says_what_is_kept(pipe: AsyncPipe) -> None:
    settings = Settings(realtime=RealtimeLimits(frames=2, frames_per_second=10))
    async with session(pipe, settings) as socket:
        await socket.send_json(sound())
        for at in range(0, 500, 100):
            await socket.send_json(frame(picture(), at))
        assert (await socket.receive_json())["reason"] == "limit"
        assert await answer(socket) == "video:2"


async def test_the_gate_counts_all_frames() -> None:
    def inputs(*frames: bytes, heard: bytes | None = None) -> Any:
        part: dict[str, Any] = {"type": "video", "times": [0.0], "frames": [{"data": each} for each in frames]}
        part |= {} if heard is None else {"sound": {"data": heard}}
        return {"messages": [{"role": "user", "content": [part]}]}

    limits = Limits(media_frame_pixels=10_000)
    assert 0 < await share_of(inputs(picture(), picture()), limits) < 1
    for given, words in [
        (inputs(*[picture()] * 4), r"content\[0\].frames\[3\]: with it the request has 12288 pixels of the frames"),
        (inputs(b"nothing"), r"frames\[0\]: not an image"),
        (inputs(picture(), heard=b"nothing"), r"sound: not a recording"),
    ]:
        with pytest.raises(Exception, match=words):
            await share_of(given, limits)
