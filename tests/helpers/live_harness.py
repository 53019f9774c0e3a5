"""A pipeline of two stages that changes while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines import make_pipeline

from omni_core.client import AsyncPipe
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest

SECONDS = 60.0


def two(folder: Path, **work: Any) -> PipelineConfig:
    fields = {name: work.pop(name) for name in ("retries", "max_in_flight") if name in work}
    return make_pipeline(
        folder,
        StageConfig(name="begin", factory="live_stages:begin", process="begin", next="work"),
        StageConfig(**{"name": "work", "factory": "live_stages:work", "process": "work", "terminal": True, **work}),
        **fields,
    )


async def ask(pipe: AsyncPipe, request_id: str | None = None, **inputs: Any) -> dict[str, Any]:
    answer: dict[str, Any] = (await pipe.submit(OmniRequest(inputs), request_id))["work"]
    return answer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def held(pipe: AsyncPipe, count: int, until: Path) -> list[asyncio.Task[dict[str, Any]]]:
    """Start requests that end when there is a file, and return when the stage ``work`` has them."""
    tasks = [asyncio.create_task(ask(pipe, f"held {n}", n=n, until=str(until))) for n in range(count)]
    unit = next(name for name in pipe.process_ids if name.startswith("work"))
    async with asyncio.timeout(SECONDS):
        while (await pipe.statistics())[unit].get("work", {}).get("in_flight", 0) < count:
            await asyncio.sleep(0.01)
    return tasks
