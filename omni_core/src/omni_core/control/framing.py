"""Frames: how messages follow each other in a byte stream, without IO.

A frame is the length of its document and of its raw bytes (4 bytes each, little-endian), the document, and the raw bytes: tensors
and arrays of a message, sent from the memory where they lie and read into memory of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from attrs import define

from omni_core.errors import TransportError
from omni_core.protocol.codec import EncodedValue, encode_split
from omni_core.protocol.messages import CompleteMessage, DataReadyMessage, StreamMessage, SubmitMessage

Work = tuple[str, str]
"""A request and the stage that it is sent to."""

_PREFIX = struct.Struct("<II")
_LARGEST = 2**32 - 1
_READ_BYTES = 256 * 1024
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
    if len(encoded.header) > _LARGEST or encoded.nbytes > _LARGEST:
        size = len(encoded.header) + encoded.nbytes
        raise TransportError(f"a control message of {size} bytes is too large; at most {_LARGEST}")
    head = _PREFIX.pack(len(encoded.header), encoded.nbytes) + encoded.header
    if not encoded.nbytes:
        return Frame([memoryview(head)], len(head), work)
    return Frame([memoryview(head), *encoded.parts()], len(head) + encoded.nbytes, work, encoded)


def parse(data: memoryview) -> tuple[memoryview, memoryview]:
    """Document and raw bytes of one whole frame."""
    document, _ = _PREFIX.unpack_from(data)
    return data[_PREFIX.size : _PREFIX.size + document], data[_PREFIX.size + document :]


class FrameReader:
    """Cuts a byte stream into frames.

    The owner receives into :meth:`room` and says how much by :meth:`received`.

    Args:
        on_frame: called with document and raw bytes of every frame. The document is valid during the call only.
    """

    def __init__(self, on_frame: Callable[[memoryview, memoryview], None]) -> None:
        self._on_frame = on_frame
        self._shared = bytearray(_READ_BYTES)
        self._buffer = self._shared  # or a buffer for one large frame alone
        self._filled = 0

    def room(self) -> memoryview:
        """The memory to receive into; release it before :meth:`received`."""
        return memoryview(self._buffer)[self._filled :]

    def received(self, count: int) -> None:
        """So many bytes are in :meth:`room`."""
        self._filled += count
        if self._buffer is self._shared:
            self._cut()
        elif self._filled == len(self._buffer):
            whole, self._buffer, self._filled = self._buffer, self._shared, 0
            self._on_frame(*parse(memoryview(whole).toreadonly()))

    def _cut(self) -> None:
        start, wanted = 0, 0
        with memoryview(self._shared) as view:
            while self._filled - start >= _PREFIX.size:
                document, raw = _PREFIX.unpack_from(view, start)
                wanted = _PREFIX.size + document + raw
                if wanted > self._filled - start:
                    break
                begin = start + _PREFIX.size
                start = begin + document + raw
                with view[begin : begin + document] as part:
                    self._on_frame(part, memoryview(bytes(view[begin + document : start])) if raw else _NOTHING)
                wanted = 0
            left = self._filled - start
            if wanted > len(self._shared):
                self._buffer = bytearray(wanted)
                self._buffer[:left] = view[start : self._filled]
            elif start:
                view[:left] = view[start : self._filled]
        self._filled = left
