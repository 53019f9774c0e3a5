"""Frames: how messages follow each other in a byte stream, without IO.

A frame is ``omni``, the length of its document and of its raw bytes (4 bytes each, little-endian), the document, and the raw bytes:
tensors, arrays and large bodies of a message, sent from the memory where they lie and read into memory of their own.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import Any

from attrs import define

from omni_core.errors import CodecError, TransportError
from omni_core.protocol.codec import EncodedValue, encode_split
from omni_core.protocol.messages import CompleteMessage, DataReadyMessage, StreamMessage, SubmitMessage

Work = tuple[str, str]
"""A request and the stage that it is sent to."""

_MARK = b"omni"
"""Begins each frame: bytes that somebody else has written to the socket are noticed, and taken for no length."""

_PREFIX = struct.Struct("<4sII")
MAX_DOCUMENT = 2**26
"""Bytes of a document. What may be large is among the raw bytes."""

_LARGEST = 2**32 - 1
_READ_BYTES = 256 * 1024
_COPIED_BYTES = 2**20
"""Bytes up to which a part that cannot change is copied, so that a frame is in one piece."""

_NOTHING = memoryview(b"")
_CHECKED = frozenset([SubmitMessage, DataReadyMessage, CompleteMessage, StreamMessage])
"""Messages whose values were checked when they were encoded. They are sent for every request, so they are not checked again."""


@define(eq=False)
class Frame:
    """One message on its way: ``parts``, concatenated, are its bytes.

    Attributes:
        nbytes: their total length.
        work: the request that the message carries forward and the stage it is for, where it does.
        source: owns the memory of the parts while they are not copied.
    """

    parts: list[memoryview]
    nbytes: int
    work: Work | None = None
    source: EncodedValue | None = None

    def own(self) -> Frame:
        """Copy the parts that lie in memory of the message's maker, which may change once the message waits. Return the frame itself."""
        if self.source is not None:
            if any(part.nbytes > _COPIED_BYTES and type(part.obj) is bytes for part in self.parts):
                self.parts = [part if type(part.obj) is bytes else memoryview(bytes(part)) for part in self.parts]
            else:
                self.parts = [memoryview(b"".join(self.parts))]
            self.source = None
        return self

    def after(self, count: int) -> list[memoryview]:
        """The parts behind the first ``count`` bytes."""
        left = []
        for part in self.parts:
            if count < part.nbytes:
                left.append(part[count:])
            count = max(count - part.nbytes, 0)
        return left


def frame(message: Any, work: Work | None = None) -> Frame:
    """The frame of a message.

    Raises:
        CodecError: it holds something that cannot be sent. TransportError: it is too large.
    """
    encoded = encode_split(message, checked=type(message) in _CHECKED)
    for what, size, most in (
        ("a control message", len(encoded.header), MAX_DOCUMENT),
        ("a value", encoded.nbytes, _LARGEST),
    ):
        if size > most:
            raise TransportError(f"{what} of {size:,} bytes cannot be sent; at most {most:,}. Send less at a time")
    head = _PREFIX.pack(_MARK, len(encoded.header), encoded.nbytes) + encoded.header
    if not encoded.nbytes:
        return Frame([memoryview(head)], len(head), work)
    return Frame([memoryview(head), *encoded.parts()], len(head) + encoded.nbytes, work, encoded)


def parse_frame(data: memoryview) -> tuple[memoryview, memoryview]:
    """Document and raw bytes of one whole frame.

    Raises:
        CodecError: it is none.
    """
    if data.nbytes < _PREFIX.size or sum(lengths := _lengths(data)) != data.nbytes - _PREFIX.size:
        raise _no_frame(data)
    document, _ = lengths
    return data[_PREFIX.size : _PREFIX.size + document], data[_PREFIX.size + document :]


def _lengths(data: memoryview, at: int = 0) -> tuple[int, int]:
    mark, document, raw = _PREFIX.unpack_from(data, at)
    if mark != _MARK or document > MAX_DOCUMENT:
        raise _no_frame(data[at:])
    return document, raw


def _no_frame(data: memoryview) -> CodecError:
    return CodecError(f"bytes that are no frame: {bytes(data[:16])!r}")


class FrameReader:
    """Cuts a byte stream into frames.

    The owner receives into :meth:`room` and says how much by :meth:`received`.

    Args:
        on_frame: called with document and raw bytes of every frame. The document is valid during the call only.
    """

    def __init__(self, on_frame: Callable[[memoryview, memoryview], None]) -> None:
        self._on_frame = on_frame
        self._shared = bytearray(_READ_BYTES)
        self._buffer: bytearray | mmap.mmap = self._shared  # or memory for one large frame alone
        self._filled = 0

    def room(self) -> memoryview:
        """The memory to receive into; release it before :meth:`received`."""
        return memoryview(self._buffer)[self._filled :]

    def received(self, count: int) -> None:
        """So many bytes are in :meth:`room`.

        Raises:
            CodecError, TransportError: they are no frame; nothing that follows can be read.
        """
        self._filled += count
        if self._buffer is self._shared:
            self._cut()
        elif self._filled == len(self._buffer):
            whole, self._buffer, self._filled = self._buffer, self._shared, 0
            self._on_frame(*parse_frame(memoryview(whole).toreadonly()))

    def _cut(self) -> None:
        start, wanted = 0, 0
        with memoryview(self._shared) as view:
            while self._filled - start >= _PREFIX.size:
                document, raw = _lengths(view, start)
                wanted = _PREFIX.size + document + raw
                if wanted > self._filled - start:
                    break
                begin = start + _PREFIX.size
                start = begin + document + raw
                with view[begin : begin + document] as part:
                    self._on_frame(part, memoryview(bytes(view[begin + document : start])) if raw else _NOTHING)
                wanted = 0
            left = self._filled - start
            if bytes(view[start : start + min(left, len(_MARK))]) != _MARK[:left]:
                raise _no_frame(view[start : self._filled])
            if wanted > len(self._shared):
                try:  # memory that is taken as it is filled
                    self._buffer = mmap.mmap(-1, wanted, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                except OSError as error:
                    raise TransportError(f"a message of {wanted:,} bytes: {error.strerror}") from error
                self._buffer[:left] = view[start : self._filled]
            elif start:
                view[:left] = view[start : self._filled]
        self._filled = left
