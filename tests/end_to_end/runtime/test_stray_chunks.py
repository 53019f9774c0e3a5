"""A stream chunk without a target fails its request, with the stage and the field of the config to change; other
requests continue.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pipelines import make_pipeline

from omni_core.client import open_async
from omni_core.config.schema import StageConfig
from omni_core.errors import RequestFailedError
from omni_core.protocol.messages import OmniRequest


@pytest.mark.parametrize(
    "process", [pytest.param("all", marks=pytest.mark.full), None], ids=["one process", "own processes"]
)
async def test_a_stage_that_streams_without_stream_to_fails_the_request_that_streams(
    run_folder: Path, process: str | None
) -> None:
    config = make_pipeline(
        run_folder,
        StageConfig(name="make", factory="pipeline_stages:Producer", process=process or "make", next="end"),
        StageConfig(name="end", factory="pipeline_stages:end", process=process or "end", terminal=True),
    )
    async with open_async(config) as client:
        silent, streaming = await asyncio.gather(
            client.submit(OmniRequest({"count": 0})), client.submit(OmniRequest({"count": 2})), return_exceptions=True
        )
        assert silent == {"end": {"sent": 0, "end": True}}
        assert isinstance(streaming, RequestFailedError)
        assert streaming.stage == "make"
        assert "stages[make].stream_to names no stage" in str(streaming)
        assert (await client.submit(OmniRequest({"count": 0}))) == {"end": {"sent": 0, "end": True}}
