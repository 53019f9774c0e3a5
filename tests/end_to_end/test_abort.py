"""A client that disappears leaves no state of its requests in any stage, cache or pool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from harness import pipeline, request_of

from omni_core.client import AsyncPipe, open_async

RESIDUE = ("in_flight", "running", "waiting", "slots_in_use", "bytes_in_use", "pending")


async def resting_state(client: AsyncPipe) -> dict[str, float]:
    """Return the free cache blocks and all state of requests, per stage."""
    state = {}
    for process, counters in (await client.statistics()).items():
        for owner, values in counters.items():
            for name, value in values.items():
                if name == "free_blocks" or name.endswith(RESIDUE):
                    state[f"{process}/{owner}.{name}"] = value
    return state


async def at_rest(client: AsyncPipe) -> dict[str, float]:
    """The baseline: the state after a request has ended, in which nothing but free blocks is left."""
    for _ in range(400):
        state = await resting_state(client)
        if not any(value for key, value in state.items() if not key.endswith("free_blocks")):
            return state
        await asyncio.sleep(0.1)
    raise AssertionError(f"a finished request left something behind: {state}")


async def settles(client: AsyncPipe, baseline: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return the differences from the baseline that remain, however long one waits."""
    different: dict[str, tuple[float, float]] = {}
    for _ in range(400):
        now = await resting_state(client)
        different = {key: (baseline[key], now[key]) for key in baseline if baseline[key] != now.get(key)}
        if not different:
            break
        await asyncio.sleep(0.1)
    return different


def long_request(cases: dict[str, Any], name: str) -> Any:
    request = request_of(cases[name])
    request.params["thinker"] |= {"max_new_tokens": 4000, "ignore_eos": True}
    request.params["talker"] |= {"max_new_tokens": 4000}
    return request


async def test_a_client_that_disappears(checkpoints: dict[str, Path], cases: dict[str, Any]) -> None:
    async with open_async(pipeline(checkpoints["a"])) as client:
        await client.submit(request_of(cases["text"]))
        baseline = await at_rest(client)
        tasks = [asyncio.create_task(client.submit(long_request(cases, "image"))) for _ in range(4)]
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stream = client.stream(long_request(cases, "text"))
        await anext(stream)
        await stream.aclose()
        assert not await settles(client, baseline)
