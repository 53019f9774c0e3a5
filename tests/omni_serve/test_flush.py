"""The operator's flush empties the caches of the stages, with the demo: cached prefixes and encoded pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator

import httpx2
import pytest
import pytest_asyncio
from PIL import Image

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app
from omni_serve.admin import create_admin_app

pytestmark = pytest.mark.asyncio(loop_scope="session")


def picture() -> str:
    stream = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


@pytest_asyncio.fixture(loop_scope="session")
async def client() -> AsyncIterator[AsyncPipe]:
    async with open_async("demo", options={"processes": "one"}) as pipe:
        yield pipe


async def test_a_flush_empties_the_caches_of_the_stages(client: AsyncPipe) -> None:
    app = create_app(client, Settings(model="demo"))
    transport = httpx2.ASGITransport(app=app)
    operator = httpx2.ASGITransport(app=create_admin_app(app.state.server, keyless=True))
    content = [{"type": "image_url", "image_url": {"url": picture()}}, {"type": "text", "text": "What do you see?"}]
    body = {"model": "demo", "messages": [{"role": "user", "content": content}]}
    known: list[tuple[float, float]] = []
    async with (
        httpx2.AsyncClient(transport=transport, base_url="http://t") as http,
        httpx2.AsyncClient(transport=operator, base_url="http://t") as admin,
    ):
        for flush in (True, False, True):
            if flush:
                answer = (await admin.post("/caches/flush")).json()
                flushed = {stage for stages in answer["stages"].values() for stage in stages}
                assert flushed == {"image_encoder", "audio_encoder", "thinker", "talker_ar"}
            before = await client.statistics()
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.json()["choices"][0]["message"]["content"] == "This picture is red."
            after = await client.statistics()
            [process] = [name for name, stages in after.items() if "thinker" in stages]
            known.append(
                (
                    after[process]["thinker"]["reused_positions"] - before[process]["thinker"]["reused_positions"],
                    after[process]["image_encoder"]["encoder_cache.hits"]
                    - before[process]["image_encoder"]["encoder_cache.hits"],
                )
            )
    assert known[0] == known[2] == (0, 0)
    assert known[1][0] > 0
    assert known[1][1] == 1
