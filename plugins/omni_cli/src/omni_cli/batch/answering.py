"""The work of a batch: a bounded number of requests at once, their answers in the order of the lines."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Line = TypeVar("Line")
Answer = TypeVar("Answer")

WINDOW = 16
"""Lines that may be answered ahead of the slowest, as a multiple of the requests at once. A kill loses no more than these."""


async def answer_in_order(
    lines: Iterable[Line],
    answer: Callable[[Line], Awaitable[Answer]],
    write: Callable[[list[Answer]], None],
    *,
    at_once: int,
) -> None:
    """Await ``answer`` for every line, ``at_once`` of them together, and ``write`` the answers in the order of the lines.

    ``write`` runs in a thread, because it waits for the disk. An exception of either ends the work; answers that are
    complete by then are written.
    """
    room = asyncio.Semaphore(at_once)
    running: deque[asyncio.Task[Answer]] = deque()
    writing: asyncio.Future[None] | None = None

    def finished() -> list[Answer]:
        ready = []
        while running and running[0].done() and not running[0].cancelled() and running[0].exception() is None:
            ready.append(running.popleft().result())
        return ready

    async def flush() -> None:
        nonlocal writing
        if ready := finished():
            writing = asyncio.ensure_future(asyncio.to_thread(write, ready))
            await asyncio.shield(writing)
        elif running and running[0].done():
            running[0].result()  # raises what it raised

    try:
        for line in lines:
            await room.acquire()
            await flush()
            while len(running) >= WINDOW * at_once:
                await asyncio.wait([running[0]])
                await flush()
            task = asyncio.ensure_future(answer(line))
            task.add_done_callback(lambda _: room.release())
            running.append(task)
        while running:
            await asyncio.wait([running[0]])
            await flush()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if writing is not None:  # its thread goes on after a cancellation, and its answers come first
            await asyncio.wait([writing])
        if (writing is None or writing.exception() is None) and (ready := finished()):
            write(ready)
