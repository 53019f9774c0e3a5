"""The blocking face of :class:`~omni_core.coordinator.open_request.AsyncOpenRequest`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from omni_core.coordinator import AsyncOpenRequest, StreamEvent

if TYPE_CHECKING:
    from omni_core.client.pipe import LoopThread


class OpenRequest(Iterator[StreamEvent]):
    """A request whose input is sent chunk by chunk; its outputs are iterated at the same time, in this thread or another.

    A context manager: leaving it aborts the request unless it is over, and so does dropping it. Methods, arguments and errors are those of
    :class:`~omni_core.coordinator.open_request.AsyncOpenRequest`.
    """

    def __init__(self, thread: LoopThread, opened: AsyncOpenRequest) -> None:
        self._thread = thread
        self._opened = opened
        self._events = thread.iterate(opened, opened.aclose)

    @property
    def request_id(self) -> str:
        return self._opened.request_id

    @property
    def chunks_taken(self) -> int:
        """Number of chunks that the entry stage has taken, also after an error."""
        return self._opened.chunks_taken

    def send(self, chunk: Any) -> None:
        """Send a chunk. Waits while too many are not taken yet."""
        self._thread.wait(self._opened.send(chunk))

    def offer(self, chunk: Any, most_waiting: int = 1) -> bool:
        """Send a chunk unless ``most_waiting`` before it are not taken yet. Returns False if it was dropped."""
        return self._thread.wait(self._opened.offer(chunk, most_waiting))

    def finish(self) -> None:
        """End the input. Idempotent."""
        self._thread.wait(self._opened.finish())

    def results(self) -> dict[str, Any]:
        """Read the outputs to their end; return the final ones by stage."""
        return {event.stage: event.data for event in self if event.final}

    def __next__(self) -> StreamEvent:
        return next(self._events)

    def close(self) -> None:
        """Abort the request, unless it is over."""
        self._thread.wait(self._opened.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
