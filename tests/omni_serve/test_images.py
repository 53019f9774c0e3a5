"""Images of prompts and of given images, by OpenAI's SDK."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from image_stages import INTERFACE, drawing_pipeline
from omni_serve_clients import http_client, request_to
from PIL import Image

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.settings import Limits

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def drawing(pipe: AsyncPipe) -> AsyncIterator[AsyncPipe]:
    """A pipeline that makes images, and no text. ``pipe`` has made the stages importable."""
    async with open_async(drawing_pipeline()) as opened:
        yield opened


@pytest.fixture(scope="module")
def studio(drawing: AsyncPipe) -> Application:
    return create_app(drawing, Settings(limits=Limits(text_characters=500)))


@pytest.fixture(scope="module")
def sdk(studio: Application) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="none", base_url="http://test/v1", http_client=http_client(studio), max_retries=0, timeout=20
    )


def opened(data: str | None) -> Image.Image:
    assert data is not None
    return Image.open(io.BytesIO(base64.b64decode(data)))


def picture(shade: int, kind: str = "png") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 10), (shade, shade, shade)).save(file, kind)
    return file.getvalue()


async def test_the_sdk_gets_images_of_the_wanted_size_that_can_be_made_again(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.images.generate(
        model="shades", prompt="grey", n=2, size="48x16", user="me", quality="auto", extra_body={"seed": 90}
    )
    assert answer.data is not None
    assert (answer.size, answer.output_format, answer.background, len(answer.data)) == ("48x16", "png", "opaque", 2)
    for each in answer.data:
        image = opened(each.b64_json)
        assert (image.format, image.size, image.getpixel((0, 0))) == ("PNG", (48, 16), (90, 90, 90))
        assert each.model_extra == {"seed": 90}


@pytest.mark.parametrize("kind", ["jpeg", "webp"])
async def test_other_formats_and_their_compression(sdk: openai.AsyncOpenAI, kind: Any) -> None:
    answer = await sdk.images.generate(prompt="grey", output_format=kind, output_compression=10)
    assert answer.data is not None
    assert opened(answer.data[0].b64_json).format == kind.upper()
    assert answer.output_format == kind


async def test_previews_are_streamed_before_the_image(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.images.generate(
        prompt="grey", stream=True, partial_images=2, size="16x32", extra_body={"seed": 100}
    )
    events = [each async for each in stream]
    assert [each.type for each in events] == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    assert [each.partial_image_index for each in events if each.type == "image_generation.partial_image"] == [0, 1]
    assert [opened(each.b64_json).getpixel((0, 0)) for each in events] == [(50,) * 3, (50,) * 3, (100,) * 3]
    assert {each.size for each in events} == {"16x32"}
    assert events[-1].type == "image_generation.completed"
    assert events[-1].usage.total_tokens == 0


@pytest.mark.parametrize("several", [False, True])
async def test_an_image_is_edited(sdk: openai.AsyncOpenAI, several: bool) -> None:
    file = ("a.png", picture(200))
    answer = await sdk.images.edit(
        model="shades", image=[file] if several else file, prompt="darker", n=2, extra_body={"strength": 0.5}
    )
    assert answer.data is not None
    assert [opened(each.b64_json).getpixel((0, 0)) for each in answer.data] == [(100,) * 3] * 2


async def test_previews_of_an_edit_are_streamed(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.images.edit(image=("a.jpg", picture(200, "jpeg")), prompt="x", stream=True, partial_images=1)
    assert [each.type async for each in stream] == ["image_edit.partial_image", "image_edit.completed"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"size": "65x16"}, "size"),
        ({"size": "1024x1024"}, "size"),
        ({"size": "large"}, "size"),
        ({"n": 5}, "n"),
        ({"n": 2, "stream": True}, "n"),
        ({"n": 0}, "n"),
        ({"partial_images": 1}, "partial_images"),
        ({"partial_images": 4, "stream": True}, "partial_images"),
        ({"output_format": "gif"}, "output_format"),
        ({"output_compression": 50}, "output_compression"),
        ({"background": "transparent"}, "background"),
        ({"response_format": "url"}, "response_format"),
        ({"seeds": 3}, "seeds"),
        ({"seed": -1}, "seed"),
        ({"extra_body": {"size": "16x16"}}, "extra_body.size"),
        ({"prompt": ""}, "prompt"),
    ],
)
async def test_what_is_not_honoured_is_named(studio: Application, given: dict[str, Any], param: str) -> None:
    async with http_client(studio) as http:
        answer = await http.post("/v1/images/generations", json={"prompt": "grey", **given})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    ("data", "files", "status", "param"),
    [
        ({"prompt": "x"}, {}, 400, "image"),
        ({"prompt": "x", "image": "a"}, {"image[]": picture(1)}, 400, "image"),
        ({}, {"image": picture(1)}, 400, "prompt"),
        ({"prompt": "x"}, {"image": b"no image"}, 400, "image"),
        ({"prompt": "x"}, {"image": b""}, 400, "image"),
        ({"prompt": "x"}, {"image": picture(1), "mask": picture(1)}, 400, "mask"),
        ({"prompt": "x", "n": "two"}, {"image": picture(1)}, 400, "n"),
        ({"prompt": "x", "strength": "high"}, {"image": picture(1)}, 400, "strength"),
    ],
)
async def test_mistakes_in_edits_are_named(
    studio: Application, data: dict[str, str], files: dict[str, bytes], status: int, param: str
) -> None:
    async with http_client(studio) as http:
        sent = [(name, (None, value.encode())) for name, value in data.items()]
        sent += [(name, ("a.png", file)) for name, file in files.items()]
        answer = await http.post("/v1/images/edits", files=sent)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


async def test_large_prompts_and_images_are_refused(drawing: AsyncPipe) -> None:
    app = create_app(drawing, Settings(limits=Limits(text_characters=10, image_pixels=100)))
    async with http_client(app) as http:
        answer = await http.post("/v1/images/generations", json={"prompt": "x" * 11})
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "prompt")
        answer = await http.post("/v1/images/edits", data={"prompt": "x"}, files={"image": ("a.png", picture(1))})
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "image")


async def test_a_request_that_fails_or_is_refused_in_a_stage(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="refused"):
        await sdk.images.generate(prompt="refuse")
    with pytest.raises(openai.InternalServerError):
        await sdk.images.generate(prompt="fail")
    with pytest.raises(openai.APIError, match=r"told to fail|failed"):
        _ = [each async for each in await sdk.images.generate(prompt="fail", stream=True)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_aborts_its_request(
    drawing: AsyncPipe, studio: Application, stream: bool
) -> None:
    async def aborted() -> float:
        found: float = (await drawing.statistics())["coordinator"]["requests"]["aborted"]
        return found

    before = await aborted()
    body = {"prompt": "grey", "pause": 0.3, "stream": stream}
    connection = request_to(studio, "/v1/images/generations", body)
    while not (await drawing.statistics())["coordinator"]["requests"]["running"]:
        await asyncio.sleep(0.01)
    await connection.to_app.put({"type": "http.disconnect"})
    async with asyncio.timeout(10):
        await connection.task
    assert await aborted() == before + 1


async def test_what_is_offered_follows_from_the_pipeline(pipe: AsyncPipe, drawing: AsyncPipe) -> None:
    async with http_client(create_app(pipe)) as http:
        answer = await http.post("/v1/images/generations", json={"prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_operation")
        answer = await http.post("/v1/images/edits", data={"prompt": "x"}, files={"image": ("a.png", picture(1))})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_operation")
    async with http_client(create_app(drawing)) as http:
        offered = (await http.get("/v1/models")).json()["data"][0]["capabilities"]
        assert (offered["outputs"], offered["image_edits"]) == (["image"], True)
        assert [each["name"] for each in offered["image_parameters"]] == [each.name for each in INTERFACE.params]
        metrics = (await http.get("/metrics")).text
        assert "omni_images_total" in metrics


async def test_images_are_counted(studio: Application, sdk: openai.AsyncOpenAI) -> None:
    before = studio.state.server.metrics.images._value.get()
    await sdk.images.generate(prompt="grey", n=3)
    assert studio.state.server.metrics.images._value.get() == before + 3
