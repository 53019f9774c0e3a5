"""Requests with media wait for room before they take a place in the pipeline; others do not."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import httpx2
import pytest
from attrs import evolve
from omni_serve_clients import http_client
from PIL import Image

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.auth import ANYONE, Key
from omni_serve.errors import ApiError
from omni_serve.media_room import MediaRoom
from omni_serve.settings import Limits

ALICE, BOB = evolve(ANYONE, name="alice"), evolve(ANYONE, name="bob")


def chat(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"model": "tones", "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "a"}]}]}


def picture(width: int, height: int) -> str:
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


async def begun(room: MediaRoom, key: Key, amount: float) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(room.take(key, amount))
    await asyncio.sleep(0)
    return task


async def test_a_key_waits_for_its_own_requests_and_another_does_not() -> None:
    room = MediaRoom(Settings())
    first, second = await begun(room, ALICE, 1.0), await begun(room, ALICE, 0.1)
    other, none = await begun(room, BOB, 1.0), await begun(room, ALICE, 0.0)
    assert [each.done() for each in (first, second, other, none)] == [True, False, True, True]
    (await first).leave()
    (await first).leave()
    (await second).leave()
    (await other).leave()
    (await none).leave()
    assert (room.held, room.waiting) == (0, 0)


async def test_a_request_that_is_cancelled_leaves_no_trace() -> None:
    room = MediaRoom(Settings())
    first, second = await begun(room, ALICE, 1.0), await begun(room, ALICE, 1.0)
    (await first).leave()  # its turn comes, and the cancellation in the same moment
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    third, fourth = await begun(room, ALICE, 1.0), await begun(room, ALICE, 1.0)
    fourth.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fourth
    (await third).leave()
    assert (room.held, room.waiting) == (0, 0)


async def test_waiting_is_bounded_in_time_and_number() -> None:
    room = MediaRoom(Settings(queue_seconds=0.02, queued=1))
    first, second = await begun(room, ALICE, 1.0), await begun(room, ALICE, 1.0)
    with pytest.raises(ApiError) as full:
        await room.take(ALICE, 1.0)
    assert (full.value.status, full.value.code) == (429, "overloaded")
    with pytest.raises(ApiError) as late:
        await second
    assert (late.value.status, late.value.code) == (503, "queue_timeout")
    (await first).leave()
    assert (room.held, room.waiting) == (0, 0)


@pytest.mark.asyncio(loop_scope="session")
async def test_images_together_are_over_a_limit(pipe: AsyncPipe) -> None:
    http = http_client(create_app(pipe, Settings(limits=Limits(media_pixels=250))))
    assert (await http.post("/v1/chat/completions", json=chat(*[picture(10, 10)] * 2))).status_code != 413
    answer = await http.post("/v1/chat/completions", json=chat(*[picture(10, 10)] * 3))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (413, "media_too_large")
    assert error["param"] == "messages[0].content[2]"
    assert "300 pixels of images, over the limit of 250 (media_pixels)" in error["message"]


@pytest.mark.asyncio(loop_scope="session")
async def test_by_default_photos_pass_and_64_large_images_do_not(http: httpx2.AsyncClient) -> None:
    photo, large = picture(6000, 4000), picture(7000, 7000)
    assert (await http.post("/v1/chat/completions", json=chat(*[photo] * 8))).status_code != 413
    assert (await http.post("/v1/chat/completions", json=chat(*[large] * 64))).status_code == 413


@pytest.mark.asyncio(loop_scope="session")
async def test_a_request_with_media_takes_room_until_its_first_result(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings())
    room, taken, left = app.state.server.media, [], []
    take, give_back = room.take, room.give_back

    async def noted(key: Key, amount: float) -> Any:
        taken.append(amount)
        return await take(key, amount)

    def noted_back(key: str, amount: float) -> None:
        left.append(amount)
        give_back(key, amount)

    room.take, room.give_back = noted, noted_back
    http = http_client(app)
    await http.post("/v1/chat/completions", json=chat())
    await http.post("/v1/chat/completions", json=chat(picture(10_000, 5_000)))
    assert taken == [0.0, 0.25]
    assert left == [0.25]
    assert (room.held, room.waiting) == (0, 0)
