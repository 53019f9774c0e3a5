"""A long recording is written down in parts, several at once; what is written of them is joined in order, with the times of the whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

from attrs import define, evolve, field

from omni_core.api import InvalidRequestError, OmniRequest, Segment, TokenLogprob, Transcript, TranscriptChunk, Word
from omni_serve.auth import Key
from omni_serve.body_budget import Held
from omni_serve.calls import Call, Heard
from omni_serve.cuts import Part
from omni_serve.encoders import pcm16, wav_header
from omni_serve.errors import placed
from omni_serve.media import undecoded
from omni_serve.server import Server

AHEAD = 4
"""Parts that are written or wait to be read by the answer, for each that may be written at one time."""

PLACES = {"messages[0].content[0]": "file"}

Timed = TypeVar("Timed", Segment, Word)

_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0xA4CF), (0xF900, 0xFAFF), (0xFF00, 0xFFEF))
"""Letters of Thai, Lao, Burmese, Khmer, Chinese and Japanese, between which there are no spaces."""


def gap(before: str, after: str) -> str:
    """Return what stands between two texts that are joined."""
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return ""
    return (
        "" if all(any(low <= ord(each) <= high for low, high in _UNSPACED) for each in (before[-1], after[0])) else " "
    )


@define(eq=False)
class LongCall:
    """One recording on its way through the pipeline, in parts: as a :class:`~omni_serve.calls.Call`, for its answer.

    Attributes:
        parts: of the recording; the iterator is read in a thread.
        request: makes the request for a recording.
        most: parts that are written at one time.
        times: segments are wanted: a part of which the pipeline tells none is one.
        decoded: is called when all parts were read.
    """

    server: Server
    key: Key
    parts: Iterator[Part]
    request: Callable[[bytes], OmniRequest]
    most: int
    times: bool
    decoded: Callable[[], object]
    usage: dict[str, int] = field(factory=dict)
    finish_reason: str = "stop"
    transcript: Transcript = field(factory=lambda: Transcript(""))
    _written: asyncio.Queue[_Writing | None] = field(factory=asyncio.Queue)
    _tasks: set[asyncio.Task[None]] = field(factory=set)

    @property
    def heard(self) -> float:
        """The seconds of the recording that are written down."""
        return self.transcript.duration or 0.0

    async def pieces(self) -> AsyncGenerator[Heard]:
        """Yield the pieces of all parts, in order. Raises as :meth:`Call.pieces`, for the first part that fails."""
        ahead = asyncio.Semaphore(self.most * AHEAD)
        reading = asyncio.create_task(self._read(ahead))
        try:
            while (part := await self._written.get()) is not None:
                async with aclosing(self._joined(part)) as joined:
                    async for piece in joined:
                        yield piece
                ahead.release()
            await reading
        finally:
            for each in (reading, *self._tasks):
                each.cancel()
            await asyncio.gather(reading, *self._tasks, return_exceptions=True)

    async def _read(self, ahead: asyncio.Semaphore) -> None:
        """Read the parts, and let each be written when there is room for it."""
        room = asyncio.Semaphore(self.most)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            room.release()

        try:
            while True:
                await ahead.acquire()
                await room.acquire()
                found = await asyncio.to_thread(self._next)
                if found is None:
                    return
                writing, data = found
                task = asyncio.create_task(self._write(writing, data))
                self._tasks.add(task)
                task.add_done_callback(end)
                self._written.put_nowait(writing)
                del data, found
        except InvalidRequestError as error:
            raise undecoded(error, "audio", "file") from None
        finally:
            self.decoded()
            self._written.put_nowait(None)

    def _next(self) -> tuple[_Writing, bytes] | None:
        """Return the next part and its file; in a thread."""
        part = next(self.parts, None)
        if part is None:
            return None
        data = wav_header(part.rate, 2 * len(part.samples)) + pcm16(part.samples)
        return _Writing(part.start, part.seconds, part.heard), data

    async def _write(self, writing: _Writing, data: bytes) -> None:
        call = writing.call = Call(
            self.server,
            self.key,
            self.request(data),
            speech=False,
            transcribes=True,
            tells=True,
            heard_seconds=writing.seconds,
            body=Held(self.server.body_budget),  # the whole was counted
        )
        del data
        try:
            with placed(PLACES):
                async with aclosing(call.pieces()) as pieces:
                    async for piece in pieces:
                        writing.put(piece)
            writing.put(None)
        except Exception as error:
            writing.put(error)

    async def _joined(self, part: _Writing) -> AsyncGenerator[Heard]:
        """Yield what is written of a part, and add it to the transcript."""
        text, is_timed = "", False
        while (piece := await part.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            chunk: TranscriptChunk = piece.chunk
            new = chunk.text if text else chunk.text.lstrip()
            between = "" if text else gap(self.transcript.text, new)
            text, is_timed = text + new, is_timed or bool(chunk.segments)
            yield self._added(between + new, part.timed(chunk.segments), part.timed(chunk.words), chunk.logprobs)
        if self.times and text.strip() and not is_timed:
            yield self._added("", [Segment(text.strip(), *part.heard)], [], [])
        call = part.call
        assert call is not None
        for name, count in call.usage.items():
            self.usage[name] = self.usage.get(name, 0) + count
        if call.finish_reason == "length":
            self.finish_reason = "length"
        language = call.transcript.language if call.transcript is not None and text.strip() else None
        self.transcript = evolve(
            self.transcript,
            language=self.transcript.language or language,
            duration=part.start + part.seconds,
            finish_reason=self.finish_reason,
            usage=self.usage,
        )

    def _added(self, text: str, segments: list[Segment], words: list[Word], logprobs: list[TokenLogprob]) -> Heard:
        whole = self.transcript
        whole.segments.extend(segments)
        whole.words.extend(words)
        whole.logprobs.extend(logprobs)
        self.transcript = evolve(whole, text=whole.text + text)
        return Heard.of(TranscriptChunk(text, "", segments, words, logprobs))


@define(eq=False)
class _Writing:
    """A part that is written: what has been written of it waits until the parts before it have been read."""

    start: float
    seconds: float
    heard: tuple[float, float]
    call: Call | None = None
    _pieces: asyncio.Queue[Any] = field(factory=asyncio.Queue)

    def put(self, piece: Any) -> None:
        self._pieces.put_nowait(piece)

    async def get(self) -> Any:
        return await self._pieces.get()

    def timed(self, found: list[Timed]) -> list[Timed]:
        """Return words or segments of the part with their times in the whole; none begins or ends outside of the part."""
        start, seconds = self.start, self.seconds
        return [
            evolve(each, start=start + min(each.start, seconds), end=start + min(each.end, seconds)) for each in found
        ]
