"""The shipped checkpoint through its pipeline: pictures that another program recognises, edits, and requests that are refused by name."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import numpy as np
import openai
import pytest
import pytest_asyncio
from PIL import Image
from tiers import few

from demo_training.image.judge import look
from demo_training.image.report import pictures, right_in, sample
from omni_core.client import AsyncPipe, open_async
from omni_core.errors import OmniError
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import ImageChunk
from omni_demo.image.pipeline import CHECKPOINT, demo_image

pytestmark = pytest.mark.asyncio(loop_scope="session")

FLOORS = {"one shape": 7, "two shapes, held-out combinations": 7, "edits: another colour": 7, "edits: remove": 7}
"""The least number of 8 pictures that must be right; README states the accuracy on more."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pipe() -> AsyncIterator[AsyncPipe]:
    async with open_async(demo_image(str(CHECKPOINT))) as pipe:
        yield pipe


def asked(text: str, stream: bool = False, **params: object) -> OmniRequest:
    return OmniRequest({"messages": [{"role": "user", "content": text}]}, dict(params), stream=stream)


def things(pixels: np.ndarray) -> list[tuple[str, str]]:
    """Colours and shapes from left to right."""
    return [(each.colour, each.shape) for each in sorted(look(pixels), key=lambda each: each.x)]


@pytest.mark.parametrize("row", few(FLOORS, 2))
async def test_pictures_show_what_was_asked(pipe: AsyncPipe, row: str) -> None:
    right, swapped, wrong = await right_in(pipe, row, 8)
    assert right >= FLOORS[row], wrong
    assert swapped <= 2, "the judge accepts pictures of other prompts"


async def test_a_seed_repeats_a_picture_alone_and_beside_others(pipe: AsyncPipe) -> None:
    first = (await pipe.submit(asked("a red star", seed=3)))["decode"].pixels
    again = (await pipe.submit(asked("a red star", seed=3)))["decode"].pixels
    assert np.array_equal(first, again)
    for seed in (4, 2**32 + 3, 2**63 - 1):
        other = (await pipe.submit(asked("a red star", seed=seed)))["decode"].pixels
        assert not np.array_equal(first, other), seed


async def test_sizes_numbers_and_previews(pipe: AsyncPipe) -> None:
    request = asked("a blue square", stream=True, width=128, images=2, partial_images=2, steps=6, seed=1)
    chunks = [event.data async for event in pipe.stream(request)]
    shown = [each for each in chunks if isinstance(each, ImageChunk)]
    assert [each.step for each in shown] == list(range(1, 7))
    assert [each.step for each in shown if each.pixels is not None] == [2, 4]
    assert chunks[-1].pixels.shape == (2, 128, 128, 3)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (asked("a pink elephant"), "does not know the word 'pink'; it draws circle"),
        (asked("red " * 30), "30 words"),
        (asked("a red circle", width=128, height=256), "pictures are square"),
        (asked("a red circle", width=100), "params.width: must be a multiple of 16"),
        (asked("a red circle", steps=0), "params.steps: must be"),
        (asked("a red circle", guidance_scale=float("nan")), "params.guidance_scale: must be"),
        (asked("a red circle", negative_prompt="a dragon"), "'dragon'"),
    ],
)
async def test_bad_requests_are_refused_by_name(pipe: AsyncPipe, request_: OmniRequest, message: str) -> None:
    with pytest.raises(OmniError, match=message.replace("(", "[(]")):
        await pipe.submit(request_)


async def test_the_sdk_draws_and_edits(pipe: AsyncPipe) -> None:
    serve = pytest.importorskip("omni_serve")  # not there where this distribution is tested alone
    transport = httpx2.ASGITransport(app=serve.create_app(pipe))
    async with httpx2.AsyncClient(transport=transport) as http:
        client = openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0)
        drawn = await client.images.generate(prompt="a red circle left of a blue square", extra_body={"seed": 1})
        assert drawn.data is not None
        file = base64.b64decode(drawn.data[0].b64_json or "")
        edited = await client.images.edit(
            image=("a.png", file), prompt="make the red circle green", extra_body={"seed": 1}
        )
        assert edited.data is not None
    assert things(np.asarray(Image.open(io.BytesIO(file)))) == [("red", "circle"), ("blue", "square")]
    image = Image.open(io.BytesIO(base64.b64decode(edited.data[0].b64_json or "")))
    assert (image.size, edited.size) == ((256, 256), "256x256")
    assert things(np.asarray(image)) == [("green", "circle"), ("blue", "square")]


async def test_requests_of_one_batch_get_each_their_own_picture(pipe: AsyncPipe) -> None:
    batch = sample("one shape", 3)
    for each, together in zip(batch, await pictures(pipe, batch), strict=True):
        [alone] = await pictures(pipe, [each])
        assert np.abs(together.astype(int) - alone.astype(int)).mean() < 1


@pytest.mark.full
def test_the_command_line_with_a_process_per_stage(tmp_path: Path) -> None:
    out = tmp_path / "x.png"
    command = [sys.executable, "-m", "omni_core.cli", "run", "demo-image", "--option", "processes=separate", "--json"]
    command += ["--text", "a red circle left of a blue square", "--param", "seed=1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["image"] == {"width": 256, "height": 256, "images": 1, "seeds": [1]}
    assert things(np.asarray(Image.open(out))) == [("red", "circle"), ("blue", "square")]
