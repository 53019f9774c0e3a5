"""Admission by objectives through the server: under a burst it refuses with 429 what would be late; alone, everyone is served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from attrs import evolve

pytest.importorskip("omni_planner")
pytest.importorskip("omni_serve")

import httpx2
from omni_serve_clients import http_client
from serve_stages import speaking_pipeline

from omni_core import OverloadedError, open_async
from omni_core.protocol.messages import OmniRequest
from omni_serve import Settings, create_app

pytestmark = pytest.mark.full

MESSAGES = [{"role": "user", "content": "word"}]
BODY: dict[str, Any] = {"model": "tones", "messages": MESSAGES, "pause": 0.2, "stream": True, "modalities": ["text"]}
"""Answered in one word after 0.2 s; the stage that writes makes one answer at a time."""


async def test_a_burst_is_served_as_far_as_the_objective_allows() -> None:
    config = evolve(speaking_pipeline(), admission={"ttft": 1.0})
    async with open_async(config) as pipe, http_client(create_app(pipe, Settings())) as http:

        async def burst(size: int) -> list[httpx2.Response]:
            return await asyncio.gather(*(http.post("/v1/chat/completions", json=BODY) for _ in range(size)))

        for size in (1, 2, 3):  # what company costs is learnt from these
            assert [each.status_code for each in await burst(size)] == [200] * size
        answers = await burst(12)
        refused = [each for each in answers if each.status_code != 200]
        assert {each.status_code for each in refused} == {429}
        assert 1 <= len(answers) - len(refused) < 12
        assert {each.json()["error"]["code"] for each in refused} == {"overloaded"}
        assert "later than the objective" in refused[0].json()["error"]["message"]
        assert int(refused[0].headers["retry-after"]) >= 1
        assert [each.status_code for each in await burst(1)] == [200]

        async def ask() -> None:
            request = OmniRequest({"messages": MESSAGES}, metadata={"pause": 0.2}, modalities=["text"], stream=True)
            async for _ in pipe.stream(request):
                pass

        outcomes = await asyncio.gather(*(ask() for _ in range(12)), return_exceptions=True)
        errors = [each for each in outcomes if each is not None]
        assert 1 <= len(errors) < 12
        assert all(isinstance(each, OverloadedError) and each.retry_after > 0 for each in errors)
        await ask()
