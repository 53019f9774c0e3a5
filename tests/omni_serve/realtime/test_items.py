"""The part of an answer that the user has heard when playback stops, and items that are refused."""

from __future__ import annotations

import base64
import io

import pytest
from omni_serve_clients import socket_to
from PIL import Image

from omni_core import AsyncPipe
from omni_core.api import Word
from omni_serve import Settings, create_app
from omni_serve.auth import ANYONE
from omni_serve.realtime.items import Part
from omni_serve.settings import Limits


@pytest.mark.parametrize(
    ("heard_ms", "heard"),
    [(None, "one two"), (0, ""), (400, "one"), (900, "one"), (1000, "one two"), (2000, "one two")],
)
def test_heard_ends_at_the_last_whole_word(heard_ms: float | None, heard: str) -> None:
    part = Part("output_audio", text="one two", audio_ms=1000, whole=True, heard_ms=heard_ms)
    assert part.heard == heard


@pytest.mark.parametrize(
    ("heard_ms", "heard"),
    [
        (0, ""),
        (799, ""),
        (800, "Well,"),
        (949, "Well, it"),
        (950, "Well, it is 5 — so."),
        (2000, "Well, it is 5 — so."),
    ],
)
def test_heard_ends_with_the_last_word_that_was_said(heard_ms: float, heard: str) -> None:
    words = [
        Word("Well", 0.1, 0.8),
        Word("it", 0.8, 0.85),
        Word("is", 0.85, 0.95),
        Word("5", 0.95, 0.95),
        Word("so", 0.95, 0.95),
    ]
    part = Part("output_audio", text="Well, it is 5 — so. No more.", audio_ms=1000, heard_ms=heard_ms, words=words)
    assert part.heard == heard


def picture(width: int, height: int, cut: int | None = None) -> str:
    file = io.BytesIO()
    Image.effect_noise((width, height), 50).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()[:cut]).decode()


def said(seconds: float, rate: int = 24_000) -> str:
    return base64.b64encode(bytes(2 * round(seconds * rate))).decode()


REFUSED = {
    "one sample": ("audio", said(1 / 24_000), "audio: 0 ms of sound; at least 100 ms are needed"),
    "a short recording": ("audio", said(0.099), "audio: 99 ms of sound; at least 100 ms are needed"),
    "no recording": ("audio", "", "audio: 0 ms of sound"),
    "a long recording": ("audio", said(2.1), "audio: 2.1 s are over the limit of 2 s (audio_seconds)"),
    "a line": ("image_url", picture(1, 2000), " (image): 1 x 2000 pixels: one side is over 200 times the other"),
    "a truncated picture": ("image_url", picture(64, 64, -1000), " (image): the image is damaged or truncated"),
    "many pixels": ("image_url", picture(101, 100), ": 101 x 100 pixels are over the limit of 10000"),
}


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("name", REFUSED)
async def test_what_a_pipeline_would_refuse_gets_into_no_conversation(pipe: AsyncPipe, name: str) -> None:
    field, content, words = REFUSED[name]
    part = {"type": "input_audio" if field == "audio" else "input_image", field: content}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"}, part]}
    app = create_app(pipe, Settings(limits=Limits(audio_seconds=2.0, image_pixels=10_000)))
    async with socket_to(app, "/v1/realtime") as socket:
        await socket.receive_json()
        for event, where in (
            ({"type": "conversation.item.create", "item": item}, "item"),
            ({"type": "response.create", "response": {"input": [item]}}, "response.input[0]"),
        ):
            await socket.send_json(event)
            error = (await socket.receive_json())["error"]
            assert words in error["message"]
            assert error["param"] == f"{where}.content[1]" + (".audio" if field == "audio" else "")
            assert error["message"].startswith(f"{where}.content[1]")
        part[field] = said(0.1) if field == "audio" else picture(100, 100)
        await socket.send_json({"type": "conversation.item.create", "item": item})
        await socket.send_json({"type": "response.create", "response": {"output_modalities": ["text"]}})
        while (event := await socket.receive_json())["type"] != "response.done":
            assert event["type"] != "error", event
        assert event["response"]["status"] == "completed"
        assert app.state.server.media.held == 0


@pytest.mark.asyncio(loop_scope="session")
async def test_pictures_are_decoded_in_the_room_of_all_requests(pipe: AsyncPipe) -> None:
    """Each of several sessions may send one at a time."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": picture(8, 8)}]}
    app = create_app(pipe, Settings(queue_seconds=0.02))
    room = app.state.server.media
    async with socket_to(app, "/v1/realtime") as socket:
        await socket.receive_json()
        place = await room.take(ANYONE, 1.0)
        for expected in ("queue_timeout", None):
            await socket.send_json({"type": "conversation.item.create", "item": item})
            assert (await socket.receive_json()).get("error", {}).get("code") == expected
            place.leave()
