"""Spoken replies of the demo in eight processes, as JSON: the first sound of one request at a time, and requests per second of 16 at once.

    python benchmarks/speech_probe.py

Run it in turn with the interpreters of two environments; it uses what both versions have.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from typing import Any

from omni_core.client import open_async
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioChunk
from omni_demo.speech.pipeline import default_model, demo

MESSAGES = {"messages": [{"role": "user", "content": "What is your name?"}]}
ALONE, TOGETHER = 20, 16


async def reply(client: Any, seed: int) -> tuple[float, float]:
    """Return the milliseconds until the first sound of a reply and until its end."""
    begin, first = time.perf_counter(), None
    async for event in client.stream(OmniRequest(MESSAGES, {"seed": seed})):
        if first is None and isinstance(event.data, AudioChunk):
            first = time.perf_counter() - begin
    assert first is not None
    return 1000 * first, 1000 * (time.perf_counter() - begin)


async def measure() -> dict[str, float]:
    async with open_async(demo(default_model()[0], processes="separate")) as client:
        for seed in range(3):
            await reply(client, seed)
        times = [await reply(client, seed) for seed in range(ALONE)]
        first, whole = (statistics.median(each) for each in zip(*times, strict=True))
        begin = time.perf_counter()
        await asyncio.gather(*(reply(client, seed) for seed in range(TOGETHER)))
        rate = TOGETHER / (time.perf_counter() - begin)
        return {"first sound, ms": first, "whole reply, ms": whole, f"{TOGETHER} at once, requests/s": rate}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
