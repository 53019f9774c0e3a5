"""A request whose input is sent while its outputs are read: the asyncio face of :mod:`omni_core.coordinator.inputs`."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import suppress
from typing import Any, Self

from omni_core.coordinator.tracked_request import StreamEvent, TrackedRequest
from omni_core.errors import InvalidRequestError
from omni_core.protocol.codec import Body, encode_whole, is_large
from omni_core.protocol.outputs import AudioChunk, TextChunk

_KINDS: dict[str, type] = {"text": TextChunk, "audio": AudioChunk, "data": dict}
"""By the word of ``Interface.input_streams``: the class of its chunks."""


class AsyncOpenRequest(AsyncIterator[StreamEvent]):
    """A request whose input is sent chunk by chunk; its outputs are iterated at the same time.

    An asynchronous context manager: leaving it aborts the request unless it is over, and so does dropping it. One that sends much must
    read the outputs too, or wait until another task does.

    Args:
        tracked: the request, which was admitted.
        events: its outputs.
        kinds: kinds of chunks that the pipeline takes.
        send: sends an encoded chunk, and whether it has tensors; the input has room.
        finish: ends the input.
        abort: drops a request by its id.
    """

    def __init__(
        self,
        tracked: TrackedRequest,
        events: AsyncGenerator[StreamEvent],
        kinds: Collection[str],
        send: Callable[[Body, bool], None],
        finish: Callable[[], None],
        abort: Callable[[str], None],
    ) -> None:
        assert tracked.input is not None
        self._tracked, self._input = tracked, tracked.input
        self._events = events
        self._kinds = kinds
        self._send, self._finish = send, finish
        self._abort = abort
        self._order = asyncio.Lock()
        self._dropped = weakref.finalize(self, _abort_soon, asyncio.get_running_loop(), abort, tracked.request_id)
        self._dropped.atexit = False

    @property
    def request_id(self) -> str:
        return self._tracked.request_id

    @property
    def chunks_taken(self) -> int:
        """Number of chunks that the entry stage has taken, also after an error."""
        return self._input.taken

    async def send(self, chunk: Any) -> None:
        """Send a chunk: a TextChunk, an AudioChunk, or a dict with arrays. Waits while too many are not taken yet.

        What the pipeline does not need, because it has answered already, is dropped.

        Raises:
            InvalidRequestError: the pipeline takes no such chunks, or the input is finished. CodecError: it cannot be sent.
            OmniError: the request has failed, with its error.
        """
        async with self._order:
            self._check(chunk)
            value = (
                chunk,
                None,
                None,
            )  # as stages send chunks to each other: with metadata, and the request in the first one
            large = is_large(value)
            body, has_tensors = (
                await asyncio.to_thread(encode_whole, value) if large else encode_whole(value, checked=True)
            )
            await self._room()
            self._send(body, has_tensors)

    async def offer(self, chunk: Any, most_waiting: int = 1) -> bool:
        """Send a chunk if the stage keeps up, or drop it: for a source that cannot wait, such as a camera.

        Args:
            most_waiting: it is dropped if so many chunks before it are not taken yet.

        Returns:
            True if it was sent.

        Raises:
            as :meth:`send`; InvalidRequestError: ``most_waiting`` is no whole number above 0.
        """
        if isinstance(most_waiting, bool) or not isinstance(most_waiting, int) or most_waiting < 1:
            raise InvalidRequestError(f"most_waiting: must be a whole number above 0, is {most_waiting!r:.80}")
        is_behind = self._order.locked() or not self._input.has_room or self._input.waiting >= most_waiting
        if is_behind and not self._tracked.is_over:
            self._check(chunk)
            return False
        await self.send(chunk)
        return True

    async def finish(self) -> None:
        """End the input. Idempotent. Raises OmniError: the request has failed, with its error."""
        async with self._order:
            if not self._input.is_finished:
                await self._room()
                self._finish()

    def _check(self, chunk: Any) -> None:
        if not isinstance(chunk, tuple(_KINDS[kind] for kind in self._kinds)):
            expected = " or ".join(f"{_KINDS[kind].__name__} ({kind})" for kind in self._kinds)
            raise InvalidRequestError(f"send: a chunk must be {expected}, is {type(chunk).__name__}")
        if self._input.is_finished:
            raise InvalidRequestError("send: the input of this request is finished; open another request")

    async def _room(self) -> None:
        while not self._input.has_room and not self._tracked.is_over:
            self._input.waiter = asyncio.get_running_loop().create_future()
            await self._input.waiter

    async def results(self) -> dict[str, Any]:
        """Read the outputs to their end; return the final ones by stage. Raises as :meth:`__anext__`."""
        return {event.stage: event.data async for event in self if event.final}

    async def __anext__(self) -> StreamEvent:
        """Return the next output, partial or final. Raises OmniError: the request has failed, with its error."""
        return await anext(self._events)

    async def aclose(self) -> None:
        """Abort the request, unless it is over. A task that reads its outputs gets RequestAbortedError."""
        self._dropped.detach()
        self._abort(self.request_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


def _abort_soon(loop: asyncio.AbstractEventLoop, abort: Callable[[str], None], request_id: str) -> None:
    """Abort a request that nobody holds any more. From any thread."""
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(abort, request_id)
