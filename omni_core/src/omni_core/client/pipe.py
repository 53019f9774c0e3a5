"""The blocking face of :class:`~omni_core.client.async_pipe.AsyncPipe`: the same calls, from scripts, threads and notebooks.

The pipeline runs in an event loop in a thread of its own, so that calls work inside another running loop too.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from omni_core.client.async_pipe import AsyncPipe, AsyncReplyStream, OpenOptions, open_async
from omni_core.client.calls import Calls
from omni_core.client.open_request import OpenRequest
from omni_core.client.replies import Piece, Reply
from omni_core.config.schema import PipelineConfig
from omni_core.coordinator import AsyncOpenRequest, StreamEvent
from omni_core.errors import OmniError, RequestAbortedError
from omni_core.forks import check_process
from omni_core.protocol.messages import OmniRequest

P = ParamSpec("P")
T = TypeVar("T")

_END_SECONDS = 20.0
"""Seconds that the exit of the interpreter waits for pipelines; their processes are killed long before."""


class LoopThread:
    """A thread whose event loop runs one pipeline. It does not refer to the :class:`Pipe`, which may be garbage-collected."""

    def __init__(self, pipe: AsyncPipe) -> None:
        self._pipe = pipe
        self._pid = os.getpid()
        self._started: Future[None] = Future()
        self._has_loop = threading.Event()
        self._is_ending = False
        self._task: asyncio.Task[None] | None = None
        self.thread = threading.Thread(target=self._run, name=f"omni {pipe.config.resolved_name}", daemon=True)
        _threads.add(self)
        self.thread.start()
        self._has_loop.wait()
        try:
            self._started.result()
        except BaseException:
            self.end()
            self.thread.join(_END_SECONDS)
            raise

    def _run(self) -> None:
        # Starting a process changes this thread's signal mask for a moment, after which the thread would take a Ctrl-C away from the
        # main thread, which then would not wake up.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with suppress(asyncio.CancelledError), asyncio.Runner() as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._started.done():  # it ran: stopping it failed
                raise
            self._started.set_exception(error)
        finally:
            self._has_loop.set()
            _threads.discard(self)

    async def _serve(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._has_loop.set()
        async with self._pipe:
            self._started.set_result(None)
            await self._loop.create_future()  # until end() cancels it

    def end(self) -> None:
        """Begin to stop the pipeline; its thread ends after it. From any thread; idempotent. In a fork, nothing: it has no such thread."""
        if not self._is_ending and self._pid == os.getpid():
            self._is_ending = True
            if self._task is None:  # there was no loop
                return
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._task.cancel)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop and return its result. An exception here, such as KeyboardInterrupt, cancels it."""
        try:
            check_process(self._pid)
            if self._is_ending:
                raise OmniError("the pipeline is closed")
        except OmniError:
            work.close()
            raise
        task: asyncio.Task[Any] | None = None

        async def tracked() -> T:
            nonlocal task
            task = asyncio.current_task()
            return await work

        def cancel() -> None:
            if task is not None:
                task.cancel()

        try:  # a KeyboardInterrupt may come before there is a future to cancel
            return asyncio.run_coroutine_threadsafe(tracked(), self._loop).result()
        except CancelledError:
            raise RequestAbortedError("the pipeline was closed before the call was finished") from None
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._loop.call_soon, cancel)  # after the first step of the task
            raise

    def iterate(self, values: AsyncIterator[T], close: Callable[[], Awaitable[None]]) -> Generator[T]:
        """Yield what an asynchronous iterator yields. Closing or dropping the generator closes it too."""

        task: asyncio.Task[Any] | None = None

        async def following() -> T | _End:
            nonlocal task
            task = asyncio.current_task()
            return await anext(values, _End.END)

        async def closing() -> None:
            if task is not None and not task.done():  # an iterator cannot be closed while it runs
                task.cancel()
                await asyncio.wait([task])
            await close()

        try:
            while (value := self.wait(following())) is not _End.END:
                yield value
        finally:
            # Else its request is aborted anyway, or its parent's. Not waited for: garbage collection may run anywhere.
            if not self._is_ending and self._pid == os.getpid():
                asyncio.run_coroutine_threadsafe(closing(), self._loop)


class _End(Enum):
    END = 0


_threads: set[LoopThread] = set()


@atexit.register
def _end_all() -> None:
    """Stop the pipelines that nobody closed."""
    running = list(_threads)
    for each in running:
        each.end()
    for each in running:
        each.thread.join(_END_SECONDS)


class ReplyStream(Iterator[Piece]):
    """The pieces of a reply as they are made. Closing or dropping it aborts the request; ``reply`` is the whole, at the end."""

    def __init__(self, thread: LoopThread, stream: AsyncReplyStream) -> None:
        self._stream = stream
        self._pieces = thread.iterate(stream, stream.aclose)

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        """Abort the request, unless it is finished."""
        self._pieces.close()

    @property
    def request_id(self) -> str:
        return self._stream.request_id

    @property
    def reply(self) -> Reply:
        """The whole reply. Raises OmniError before the last piece was read."""
        return self._stream.reply


def _blocking(call: Callable[Concatenate[AsyncPipe, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Pipe, P], T]:
    """Return the blocking form of a method."""

    @wraps(call)
    def wait(self: Pipe, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        return self._thread.wait(call(self._pipe, *arguments, **keywords))

    return wait


class Pipe(Calls[Reply, ReplyStream]):
    """A running pipeline, called from any thread. Made by :func:`open`; it ends with ``close()`` or its ``with`` block, and when it
    is garbage-collected or the interpreter exits.

    Methods, arguments and errors are those of :class:`~omni_core.client.async_pipe.AsyncPipe`. Ctrl-C during a call aborts its request.
    """

    def __init__(self, pipe: AsyncPipe) -> None:
        self._pipe = pipe
        self._thread = LoopThread(pipe)
        self._end = weakref.finalize(self, self._thread.end)
        self.notices = pipe.notices

    @property
    def config(self) -> PipelineConfig:
        return self._pipe.config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort what runs and end the processes. Idempotent."""
        self._end()
        self._thread.thread.join()

    def _ask(self, request_id: str | None, asked: dict[str, Any], *, stream: bool) -> Any:
        answer = self._pipe._ask(request_id, asked, stream=stream)
        return ReplyStream(self._thread, answer) if stream else self._thread.wait(answer)

    def stream(self, request: OmniRequest, request_id: str | None = None) -> Iterator[StreamEvent]:
        """Yield partial results and final ones as they come. Leaving the iteration aborts the request."""
        events = self._pipe.stream(request, request_id)
        return self._thread.iterate(events, events.aclose)

    def open_request(
        self,
        request: OmniRequest | None = None,
        request_id: str | None = None,
        *,
        chunk_timeout: float | None = None,
    ) -> OpenRequest:
        """Begin a request whose input is sent while its outputs are read. See :meth:`AsyncPipe.open_request`."""

        async def opened() -> AsyncOpenRequest:
            return self._pipe.open_request(request, request_id, chunk_timeout=chunk_timeout)

        return OpenRequest(self._thread, self._thread.wait(opened()))

    def health(self) -> dict[str, dict[str, Any]]:
        """Return, by unit (a process, or the ranks of a stage): stages, state, restarts, reason of the last death, pids."""

        async def health() -> dict[str, dict[str, Any]]:
            return self._pipe.health()

        return self._thread.wait(health())

    submit = _blocking(AsyncPipe.submit)
    abort = _blocking(AsyncPipe.abort)
    statistics = _blocking(AsyncPipe.statistics)
    flush_caches = _blocking(AsyncPipe.flush_caches)
    replace = _blocking(AsyncPipe.replace)
    scale = _blocking(AsyncPipe.scale)
    start_profile = _blocking(AsyncPipe.start_profile)
    stop_profile = _blocking(AsyncPipe.stop_profile)


def open(
    pipeline: str | Path | PipelineConfig, model: str | Path | None = None, **options: Unpack[OpenOptions]
) -> Pipe:
    """Start a pipeline and return it when it is ready. Arguments and errors are those of :func:`open_async`."""
    return Pipe(open_async(pipeline, model, **options))


def run(config: PipelineConfig, request: OmniRequest) -> dict[str, Any]:
    """Start a pipeline, answer one request, and end it."""
    with open(config) as pipe:
        return pipe.submit(request)
