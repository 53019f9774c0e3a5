"""The input of a request that is still coming: pieces go in from the network's side, chunks go to the pipeline as it takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Protocol, Self

import numpy as np

from omni_core.api import AudioChunk, OmniError, OmniRequest, RequestAbortedError, TextChunk
from omni_core.runtime_api import StreamEvent
from omni_serve.errors import ApiError, api_error


class OpenRequest(Protocol):
    """The part of :class:`omni_core.AsyncPipe`'s open requests that a server uses."""

    @property
    def chunks_taken(self) -> int: ...

    async def send(self, chunk: Any) -> None: ...

    async def finish(self) -> None: ...

    async def aclose(self) -> None: ...

    def __aiter__(self) -> Any: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exception: object) -> None: ...


class LiveInput:
    """Pieces of one input, in order. :meth:`put` never waits: the one who puts them in bounds what waits, or waits by :meth:`drained`.

    Pieces that wait are joined: a pipeline that is behind gets few large chunks.

    Args:
        join: makes a chunk of pieces.
        on_taken: called with the length of pieces that have gone to the pipeline.
        chunk_timeout: seconds in which the pipeline must take each chunk.
    """

    def __init__(
        self,
        join: Callable[[Sequence[Any]], Any],
        on_taken: Callable[[int], object] = lambda size: None,
        chunk_timeout: float | None = None,
    ) -> None:
        self._join, self._on_taken, self._chunk_timeout = join, on_taken, chunk_timeout
        self._pieces: list[Any] = []
        self._sizes: list[int] = []
        self._news, self._drained = asyncio.Event(), asyncio.Event()
        self._drained.set()
        self._ended = self._over = False
        self._error: ApiError | None = None
        self._opened: OpenRequest | None = None

    @property
    def taken(self) -> int:
        """Length of the pieces that the pipeline's first stage has taken."""
        return 0 if self._opened is None else sum(self._sizes[: self._opened.chunks_taken])

    def put(self, piece: Any) -> None:
        """Add a piece. One that comes after the end of the request is dropped."""
        if not self._over:
            self._pieces.append(piece)
            self._drained.clear()
            self._news.set()

    def finish(self) -> None:
        """End the input."""
        self._ended = True
        self._news.set()

    def fail(self, error: ApiError) -> None:
        """End the request with an error of the input's source."""
        self._error = error
        self._news.set()

    async def drained(self) -> None:
        """Wait until no piece waits here."""
        await self._drained.wait()

    async def events(
        self, open_request: Callable[..., OpenRequest], request: OmniRequest, identity: str
    ) -> AsyncGenerator[StreamEvent]:
        """Open the request, and yield its outputs while the input goes in. Leaving the iteration aborts it.

        Raises:
            OmniError: it has failed. ApiError: that of :meth:`fail`.
        """
        feeding: asyncio.Task[None] | None = None
        try:
            async with open_request(request, identity, chunk_timeout=self._chunk_timeout) as opened:
                self._opened = opened
                feeding = asyncio.create_task(self._feed(opened))
                async for event in opened:
                    yield event
        except RequestAbortedError:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            self._over = True
            self._drained.set()
            if feeding is not None:
                feeding.cancel()

    async def _feed(self, opened: OpenRequest) -> None:
        try:
            while self._error is None:
                if self._pieces:
                    pieces, self._pieces = self._pieces, []
                    size = sum(map(len, pieces))
                    await opened.send(self._join(pieces))
                    self._sizes.append(size)
                    self._on_taken(size)
                elif self._ended:
                    await opened.finish()
                    return
                else:
                    self._drained.set()
                    self._news.clear()
                    await self._news.wait()
        except OmniError:
            return  # the outputs end with it
        except Exception as error:
            self._error = api_error(error)
        await opened.aclose()


def sound_input(rate: int, on_taken: Callable[[int], object] = lambda size: None, **options: Any) -> LiveInput:
    """Return an input of mono float32 samples at ``rate`` Hz."""
    return LiveInput(lambda pieces: AudioChunk(np.concatenate(pieces), rate), on_taken, **options)


def text_input() -> LiveInput:
    """Return an input of texts."""
    return LiveInput(lambda pieces: TextChunk("".join(pieces)))
