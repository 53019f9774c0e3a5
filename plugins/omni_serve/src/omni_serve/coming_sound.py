"""A recording that is still being uploaded: its bytes are decoded in a thread as they come, and the sound goes to an open request."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import numpy as np
from python_multipart.exceptions import FormParserError
from starlette.types import Message, Receive

from omni_core.api import AudioChunk, InvalidRequestError, OmniRequest, watched
from omni_core.runtime_api import StreamEvent
from omni_media.api import Limits as DecodingLimits
from omni_media.api import forward_sound
from omni_serve.body_budget import Held
from omni_serve.coming_form import ComingForm
from omni_serve.encoders import Samples
from omni_serve.errors import ApiError, api_error, invalid
from omni_serve.live_input import LiveInput, OpenRequest
from omni_serve.media import undecoded
from omni_serve.settings import Limits

WAITING_BYTES = 2**17
"""Bytes of an upload that wait for their decoder; no more of the body is read meanwhile."""


class Window:
    """Bytes on their way from the event loop to a thread. At most :data:`WAITING_BYTES` wait, and one piece more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = threading.Condition()
        self._pieces: deque[memoryview] = deque()
        self._size = 0
        self._ended = self._closed = False
        self._room = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Add bytes, when there is room."""
        while self._size >= WAITING_BYTES and not self._closed:
            self._room.clear()
            await self._room.wait()
        with self._news:
            if data and not self._closed:
                self._pieces.append(memoryview(data))
                self._size += len(data)
                self._news.notify()

    def end(self) -> None:
        """Say that all bytes have come."""
        with self._news:
            self._ended = True
            self._news.notify()

    def close(self) -> None:
        """Drop what waits, and what still comes: the reader finds the end."""
        with self._news:
            self._closed = self._ended = True
            self._pieces.clear()
            self._news.notify()
        self._room.set()

    @property
    def is_empty(self) -> bool:
        """Return whether a read would wait."""
        return not self._pieces and not self._ended

    def read(self, size: int) -> bytes:
        """Wait for bytes, and return at most ``size`` of them; none at the end. For the thread."""
        with self._news:
            self._news.wait_for(lambda: self._pieces or self._ended)
            if not self._pieces:
                return b""
            first = self._pieces.popleft()
            if len(first) > size:
                self._pieces.appendleft(first[size:])
            self._size -= min(len(first), size)
        _call(self._loop, self._room.set)
        return bytes(first[:size])


class ComingSound(LiveInput):
    """The sound of an upload, as an input that fills itself.

    Args:
        form: whose file has begun.
        receive: the rest of the body.
        more: there is a rest.
        body: what the request holds of the budget of bodies.
        fields: that must not come after the file.
    """

    def __init__(
        self, form: ComingForm, receive: Receive, more: bool, body: Held, limits: Limits, fields: Collection[str]
    ) -> None:
        super().__init__(lambda pieces: AudioChunk(np.concatenate(pieces), self._rate))
        self._form, self._receive, self._more, self._body = form, receive, more, body
        self._fields, self._limits = fields, limits
        self._loop = asyncio.get_running_loop()
        self._window, self._gone = Window(), asyncio.Event()
        self._rate = self._size = 0
        self._is_decoded = self._is_checked = False

    async def gone(self) -> Message:
        """Return when the client has disconnected."""
        await self._gone.wait()
        return {"type": "http.disconnect"}

    @asynccontextmanager
    async def coming(self) -> AsyncIterator[None]:
        """Read the body."""
        reading = watched(self._read(), "the body of an upload")
        try:
            yield
        finally:
            reading.cancel()

    async def events(
        self, open_request: Callable[..., OpenRequest], request: OmniRequest, identity: str
    ) -> AsyncGenerator[StreamEvent]:
        """Decode while the request is open: one that waits for its place has no thread."""
        threading.Thread(target=self._decode, name="upload", daemon=True).start()
        try:
            async with aclosing(super().events(open_request, request, identity)) as events:
                async for event in events:
                    yield event
        finally:
            self._window.close()

    async def _read(self) -> None:
        try:
            await self._write(self._form.begin())
            while self._more:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self._gone.set()
                    return
                self._more = message.get("more_body", False)
                self._body.give_back()
                await self._write(self._form.feed(message.get("body", b"")))
                self._check_late()
            if not self._form.has_ended:
                raise invalid("file: the form ends before the file does", "file", "invalid_form")
            self._is_checked = True
            self._window.end()
            self._finish()
        except ApiError as error:
            self.fail(error)
        except (FormParserError, ValueError, KeyError) as error:
            self.fail(invalid(f"The form cannot be read: {error}", code="invalid_form"))
        with suppress(ApiError):  # once more the same
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._gone.set()

    async def _write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > (most := self._limits.media_mib) * 2**20:
            raise ApiError(413, f"file: over the limit of {most:g} MiB", code="media_too_large", param="file")
        await self._window.write(data)

    def _finish(self) -> None:
        """End the input when all of the form has come and all of its sound is decoded: a decoder may end before the file does."""
        if self._is_checked and self._is_decoded:
            self.finish()

    def _check_late(self) -> None:
        given = {self._form.file, *(name for name, _ in self._form.fields)}
        for name in self._form.late:
            if name in self._fields:
                if name in given:
                    raise invalid(f"{name}: given twice", name, "invalid_value")
                message = (
                    f"{name}: comes after the file, of which a part has been written down; send it before the file"
                )
                raise invalid(message, name, "invalid_value")

    def _decode(self) -> None:
        """Decode, in the thread."""
        error, pieces = None, list[Samples]()
        limits = DecodingLimits(
            max_audio_seconds=self._limits.audio_seconds,
            max_file_mb=int(self._limits.media_mib) + 1,
            max_request_samples=self._limits.media_samples,
        )
        try:
            for samples, rate in forward_sound(self._window, limits, "file"):
                pieces.append(samples)
                if self._window.is_empty or sum(map(len, pieces)) >= rate:
                    asyncio.run_coroutine_threadsafe(self._take(pieces, rate), self._loop).result()
                    pieces = []
            if pieces:
                asyncio.run_coroutine_threadsafe(self._take(pieces, rate), self._loop).result()
        except InvalidRequestError as found:
            error = undecoded(found, "audio", "file")
        except Exception as found:
            error = api_error(found)
        _call(self._loop, self._end, error)

    async def _take(self, pieces: list[Samples], rate: int) -> None:
        self._rate = rate
        for each in pieces:
            self.put(each)
        await self.drained()

    def _end(self, error: ApiError | None) -> None:
        self._window.close()
        self._is_decoded = True
        if error is not None:
            self.fail(error)
        else:
            self._finish()


def _call(loop: asyncio.AbstractEventLoop, work: Callable[..., object], *arguments: Any) -> None:
    """Call a function in the event loop, from another thread."""
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(work, *arguments)
