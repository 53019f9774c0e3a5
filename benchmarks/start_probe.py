"""Starts the demo once, answers, kills a stage, and prints what that took as JSON: ``python start_probe.py MODE REPLIES``.

Run by ``first_reply.py`` with this environment's interpreter and with that of another one, so it uses what both versions have.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from omni_core.client import open_async
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioChunk, TextChunk
from omni_demo.speech.pipeline import default_model, demo

KILLED = "thinker"


def private_and_shared(pids: list[int]) -> tuple[float, float]:
    """Return the MiB that processes have for themselves, and with their shares of what they share (USS and PSS)."""
    private = proportional = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        private += sizes["Private_Clean"] + sizes["Private_Dirty"]
        proportional += sizes["Pss"]
    return private / 1024, proportional / 1024


async def first_pieces(client: Any, seed: int) -> tuple[float, float]:
    """Return the seconds until the first text and the first sound of a reply."""
    messages = {"messages": [{"role": "user", "content": "What is your name?"}]}
    begin, seen = time.perf_counter(), dict[type, float]()
    async for event in client.stream(OmniRequest(messages, {"seed": seed})):
        seen.setdefault(type(event.data), time.perf_counter() - begin)
    return seen[TextChunk], seen[AudioChunk]


async def seconds_of_a_restart(client: Any) -> float:
    """Kill a stage; return the seconds from its end until it serves again."""
    pid = client.process_ids[KILLED]
    os.kill(pid, signal.SIGKILL)
    begin = time.perf_counter()
    while client.process_ids.get(KILLED) == pid or client.health()[KILLED]["state"] != "ready":
        await asyncio.sleep(0.005)
    return time.perf_counter() - begin


async def measure(mode: str, replies: int) -> dict[str, float]:
    begin = time.perf_counter()
    async with open_async(demo(default_model()[0], processes=mode)) as client:
        figures = {"start": time.perf_counter() - begin}
        figures["very first text"], figures["very first sound"] = await first_pieces(client, 0)
        times = [await first_pieces(client, seed) for seed in range(1, 1 + replies)]
        figures["first text"], figures["first sound"] = (statistics.median(each) for each in zip(*times, strict=True))
        children = [each.pid for each in psutil.Process().children(recursive=True)]
        figures["private memory"], figures["memory"] = private_and_shared([os.getpid(), *children])
        if KILLED in client.process_ids:
            figures["restart"] = await seconds_of_a_restart(client)
        return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2])))))
