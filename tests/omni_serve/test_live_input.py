"""Pieces on their way into an open request: in order, joined where they wait, and dropped when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Self

import pytest

from omni_core.api import OmniRequest, RequestAbortedError, RequestFailedError, TextChunk
from omni_serve.errors import ApiError
from omni_serve.live_input import LiveInput, text_input

pytestmark = pytest.mark.asyncio


class Opened:
    """A request that takes a chunk when it is told to. Its outputs are put in by hand."""

    def __init__(self) -> None:
        self.chunks: list[Any] = []
        self.outputs: asyncio.Queue[Any] = asyncio.Queue()
        self.may_take = asyncio.Semaphore(0)
        self.finished = self.closed = False
        self.chunks_taken = 0
        self.chunk_timeout: float | None = None

    def __call__(self, request: OmniRequest, identity: str, *, chunk_timeout: float | None = None) -> Self:
        self.chunk_timeout = chunk_timeout
        return self

    async def send(self, chunk: Any) -> None:
        await self.may_take.acquire()
        self.chunks.append(chunk)

    async def finish(self) -> None:
        self.finished = True
        self.outputs.put_nowait(None)

    async def aclose(self) -> None:
        self.closed = True
        self.outputs.put_nowait(RequestAbortedError("aborted"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.closed = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if (output := await self.outputs.get()) is None:
            raise StopAsyncIteration
        if isinstance(output, Exception):
            raise output
        return output


async def read(pieces: LiveInput, opened: Any) -> list[Any]:
    return [event async for event in pieces.events(opened, OmniRequest(), "r")]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_pieces_that_wait_are_joined_and_what_was_taken_is_told() -> None:
    taken: list[int] = []
    opened, pieces = Opened(), LiveInput(lambda pieces: TextChunk("".join(pieces)), taken.append, 5.0)
    pieces.put("a")
    reading = asyncio.ensure_future(read(pieces, opened))
    await settle()
    for each in "bcd":
        pieces.put(each)
    waiting = asyncio.ensure_future(pieces.drained())
    opened.may_take.release()
    await settle()
    assert (taken, waiting.done(), pieces.taken) == ([1], False, 0)
    opened.may_take.release()
    opened.chunks_taken = 1
    await waiting
    assert ([chunk.text for chunk in opened.chunks], taken, pieces.taken) == (["a", "bcd"], [1, 3], 1)
    opened.outputs.put_nowait("out")
    pieces.finish()
    assert await reading == ["out"]
    assert (opened.finished, opened.chunk_timeout) == (True, 5.0)


async def test_an_input_without_anything_ends() -> None:
    opened, pieces = Opened(), text_input()
    pieces.finish()
    assert await read(pieces, opened) == []
    assert opened.chunks == []


async def test_an_error_of_the_source_ends_the_request() -> None:
    opened, pieces = Opened(), text_input()
    reading = asyncio.ensure_future(read(pieces, opened))
    await settle()
    pieces.fail(ApiError(400, "damaged"))
    with pytest.raises(ApiError, match="damaged"):
        await reading
    assert opened.closed
    assert not opened.finished


async def test_what_cannot_be_joined_ends_the_request(caplog: pytest.LogCaptureFixture) -> None:
    def fail(pieces: Any) -> Any:
        raise ValueError("a defect")

    pieces = LiveInput(fail)
    pieces.put("a")
    with pytest.raises(ApiError, match="The server failed"):
        await read(pieces, Opened())
    assert "a defect" in caplog.text


async def test_a_failed_request_drops_what_waits_and_what_comes() -> None:
    opened, pieces = Opened(), text_input()
    reading = asyncio.ensure_future(read(pieces, opened))
    pieces.put("a")
    await settle()
    pieces.put("b")
    opened.outputs.put_nowait(RequestFailedError("r", "s", "ValueError", "it failed"))
    with pytest.raises(RequestFailedError):
        await reading
    pieces.put("c")
    await pieces.drained()
    await settle()
    assert opened.chunks == []
    assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_leaving_the_outputs_ends_all() -> None:
    opened, pieces = Opened(), text_input()
    opened.outputs.put_nowait("out")
    events: AsyncGenerator[Any] = pieces.events(opened, OmniRequest(), "r")
    assert await anext(events) == "out"
    pieces.put("a")
    await settle()
    await events.aclose()
    await settle()
    assert opened.closed
    assert not asyncio.all_tasks() - {asyncio.current_task()}
