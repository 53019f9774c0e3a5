"""The pipeline in processes: concurrent requests, previews, aborts, bad input by name, and the command line."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import pytest_asyncio
from PIL import Image
from stages_in_turn import Stages

from omni_core import AsyncPipe, open_async
from omni_core.errors import InvalidRequestError
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import ImageChunk, ImageResult
from omni_diffusion.parts import parts
from omni_diffusion.qwen_image.pipeline import qwen_image

SIZES = [(64, 64), (96, 32), (64, 64), (32, 32)]


def request(number: int, **params: Any) -> OmniRequest:
    width, height = SIZES[number % 4]
    asked = {"width": width, "height": height, "steps": 2 + number, "seed": number, **params}
    text = "a red circle " * (1 + number)
    return OmniRequest(
        {"messages": [{"role": "user", "content": text}]}, asked, stream=bool(params.get("partial_images"))
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pipe(small: Path) -> AsyncIterator[AsyncPipe]:
    async with open_async(qwen_image(str(small))) as pipe:
        yield pipe


@pytest.mark.asyncio(loop_scope="session")
async def test_requests_of_mixed_sizes_side_by_side_over_processes(pipe: AsyncPipe, small: Path) -> None:
    replies = await asyncio.gather(*(pipe.submit(request(number)) for number in range(8)))
    with pytest.raises(InvalidRequestError, match=r"params\.height: must be a multiple of 16, 16 to 4096, is 50"):
        await pipe.submit(request(1, height=50))
    events = [event async for event in pipe.stream(request(3, partial_images=2))]
    stages = Stages(small)
    for number, reply in enumerate(replies):
        result = reply["decode"]
        assert isinstance(result, ImageResult)
        params = request(number).params
        [(_, expected)] = stages.run({"prompt": "a red circle " * (1 + number), **params})
        assert np.abs(result.pixels.astype(int) - expected.astype(int)).max() <= 1
        assert result.seeds == [number]
    told = [event.data for event in events if isinstance(event.data, ImageChunk)]
    assert [(each.step, each.steps) for each in told] == [(step, 5) for step in range(1, 6)]
    previews = [each.step for each in told if each.pixels is not None]
    assert previews == [1, 3]
    assert all(each.pixels.shape == (1, 32, 32, 3) for each in told if each.pixels is not None)


@pytest.mark.asyncio(loop_scope="session")
async def test_the_sdk_gets_previews_and_the_image(pipe: AsyncPipe, small: Path) -> None:
    serve = pytest.importorskip("omni_serve")  # not there where this distribution is tested alone
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=serve.create_app(pipe))) as http:
        client = openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0)
        stream = await client.images.generate(
            prompt="a red circle", size="64x32", stream=True, partial_images=2, extra_body={"steps": 3, "seed": 5}
        )
        files = [io.BytesIO(base64.b64decode(event.b64_json)) async for event in stream]
    made = [np.asarray(Image.open(file)) for file in files]
    assert [image.shape for image in made] == [(32, 64, 3)] * 3  # two previews, and the image
    asked = {"prompt": "a red circle", "width": 64, "height": 32, "steps": 3, "seed": 5}
    [(_, expected)] = Stages(small).run(asked)
    assert np.abs(made[-1].astype(int) - expected[0].astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "image", "image": 0}], "no text"),
        ([{"type": "text", "text": "a"}, {"type": "audio"}], "audio cannot be read"),
        ([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "image"}], "2 images; one can be edited"),
    ],
)
def test_messages_that_make_no_image_are_refused_by_name(content: Any, text: str) -> None:
    from omni_core.protocol.messages import StagePayload

    with pytest.raises(InvalidRequestError, match=text):
        parts(StagePayload("r", OmniRequest({"messages": [{"role": "user", "content": content}]})))


def test_an_image_by_the_command_line(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.png"
    command = [
        sys.executable,
        "-m",
        "omni_core.cli",
        "run",
        "qwen-image",
        "--model",
        str(small),
        "--option",
        "processes=one",
    ]
    command += ["--text", "a red circle", "--json", "--out", str(out)]
    for name, value in (("width", 64), ("height", 32), ("steps", 2), ("seed", 7), ("images", 2)):
        command += ["--param", f"{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["image"] == {"width": 64, "height": 32, "images": 2, "seeds": [7]}
    assert [Image.open(tmp_path / f"x-{number}.png").size for number in (1, 2)] == [(64, 32), (64, 32)]
