"""The runtime's workloads, for any system with a ``submit``: the same code measures ours and the peer.

Imports the standard library only, so that it also runs in the peer's environment. Every function returns figures of one
round. A client is a coroutine of the coordinator's process that awaits ``submit(inputs)``; times are wall seconds
around it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

Submit = Callable[[Any], Awaitable[Any]]


def payload_1k(index: int) -> dict[str, Any]:
    """About 1 KB of plain data."""
    return {"prompt": "x" * 960, "i": index, "stream": False}


async def latency(submit: Submit, count: int, nbytes: int = 0, blob_bytes: int = 0) -> float:
    """Return the median seconds of one request at a time: 1 KB of data, or a tensor of ``nbytes`` to attach, or inputs
    of ``blob_bytes``.
    """
    times = []
    blob = os.urandom(blob_bytes)
    for index in range(count):
        value = {"nbytes": nbytes} if nbytes else {"blob": blob} if blob_bytes else payload_1k(index)
        begin = time.perf_counter()
        await submit(value)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


async def throughput(submit: Submit, count: int, concurrency: int = 64) -> float:
    """Return the requests per second of a closed loop of ``concurrency`` clients."""
    left = iter(range(count))

    async def client() -> None:
        for index in left:
            await submit(payload_1k(index))

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return count / (time.perf_counter() - begin)


async def stream(submit: Submit, count: int, chunks: int, chunk_bytes: int) -> float:
    """Return the chunks per second at the consumer, which answers with the times of its first and its last chunk;
    median of ``count``.
    """
    rates = []
    for _ in range(count):
        answer = await submit({"chunks": chunks, "chunk_bytes": chunk_bytes})
        assert answer["chunks"] == chunks, answer
        rates.append((chunks - 1) / (answer["last"] - answer["first"]))
    return statistics.median(rates)
