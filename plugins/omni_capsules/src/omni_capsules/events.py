"""Events of one request in one stage, and the bytes that a record of them consists of.

A record is a sequence of frames: four bytes with the length of a document (little-endian), and the document, an event as msgpack of the
core's codec. The first one is ``begin``. A process that dies while it writes leaves a frame cut off, which a reader leaves out.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

import attrs
from attrs import evolve, field, frozen

from omni_core.errors import CodecError
from omni_core.protocol.codec import decode, encode
from omni_core.protocol.registry import names

_LENGTH = struct.Struct("<I")
INPUTS = ("payload", "chunk", "done")
"""Kinds of events that a stage was given: a payload, a chunk of another stage's stream, its end."""
OUTPUTS = ("stream", "result", "error")
"""Kinds of events that its scheduler put out."""
_LONGEST_SHAPE, _DEEPEST_SHAPE, _MOST_ITEMS = 400, 4, 12


@frozen
class Event:
    """One event of a request in a stage.

    Attributes:
        kind: ``begin``, one of :data:`INPUTS` or :data:`OUTPUTS`, ``taken`` (the scheduler has taken the first message), ``completed``,
            ``failed`` or ``aborted``.
        at: nanoseconds since ``begin``.
        part: the part of the request, of stages with ``expand_fn``, that an output is of; empty: the request itself.
        source: the stage that sent an input; ``None``: the coordinator.
        target: the stage that a chunk is for; ``None``: as the pipeline says.
        data: the encoded value, where it may be recorded and has room.
        digest: the BLAKE2 digest of that value, also where it had no room; ``None`` if nothing of it may be recorded.
        shape: its types and sizes in words.
        nbytes: the size of the encoded value.
        detail: more of the event as plain data: the error of ``failed``.
    """

    kind: str
    at: int = 0
    part: str = ""
    source: str | None = None
    target: str | None = None
    data: bytes | None = field(default=None, repr=False)
    digest: bytes | None = field(default=None, repr=False)
    shape: str = ""
    nbytes: int = 0
    detail: dict[str, Any] = field(factory=dict)

    def frame(self) -> bytes:
        """Return the event as bytes of a record."""
        document = encode([getattr(self, each.name) for each in attrs.fields(Event)])
        return _LENGTH.pack(len(document)) + document

    def without_data(self) -> Event:
        """Return the event without its value; the digest stays."""
        return self if self.data is None else evolve(self, data=None)


def read(record: bytes) -> Iterator[Event]:
    """Yield the events of a record; one that is cut off at the end is left out.

    Raises:
        CodecError: the bytes are no record.
    """
    place, count = 0, len(attrs.fields(Event))
    while place + _LENGTH.size <= len(record):
        [length] = _LENGTH.unpack_from(record, place)
        place += _LENGTH.size
        if place + length > len(record):
            return
        values = decode(record[place : place + length])
        if not isinstance(values, list) or len(values) != count or not _fits(values):
            raise CodecError("this is no event of a record")
        yield Event(*values)
        place += length


def _fits(values: list[Any]) -> bool:
    kinds: list[Any] = [str, int, str, str | None, str | None, bytes | None, bytes | None, str, int, dict]
    return all(isinstance(value, kind) for value, kind in zip(values, kinds, strict=True)) and 0 <= values[1] < 2**63


def digest_of(data: bytes) -> bytes:
    """Return the digest of an encoded value."""
    return hashlib.blake2b(data, digest_size=16).digest()


def nbytes_of(value: Any, depth: int = 0) -> int:
    """Return about how many bytes a value takes when it is encoded, from the sizes of its leaves, without encoding it."""
    if isinstance(value, str | bytes | bytearray):
        return len(value) + 5
    if isinstance(value, dict):
        children: Any = [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        children = value
    elif type(value) in names:
        children = [getattr(value, name) for name in names[type(value)][1]]
    else:
        return int(getattr(value, "nbytes", 9))
    return 5 + (sum(nbytes_of(child, depth + 1) for child in children) if depth < 32 else 0)


def shape_of(value: Any) -> str:
    """Return the types and sizes in a value: ``{ids: int64[37], text: str[12]}``. Nothing of its content, but for the keys of dicts."""
    text = _shape(value, 0)
    return text if len(text) <= _LONGEST_SHAPE else f"{text[: _LONGEST_SHAPE - 3]}..."


def _shape(value: Any, depth: int) -> str:
    kind = type(value)
    if value is None or kind in (bool, int, float):
        return kind.__name__
    if isinstance(value, str | bytes | bytearray):
        return f"{kind.__name__}[{len(value)}]"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')}[{'x'.join(map(str, value.shape))}]"
    if depth == _DEEPEST_SHAPE:
        return kind.__name__
    if isinstance(value, dict):
        pairs = [f"{key}: {_shape(value[key], depth + 1)}" for key in list(value)[:_MOST_ITEMS]]
        return "{" + ", ".join(pairs) + (", ..." if len(value) > _MOST_ITEMS else "") + "}"
    if isinstance(value, list | tuple):
        inner = list(dict.fromkeys(_shape(each, depth + 1) for each in value[:_MOST_ITEMS]))
        return f"{kind.__name__}[{len(value)}]" + (f" of {' | '.join(inner)}" if inner else "")
    if kind in names:
        pairs = [f"{name}: {_shape(getattr(value, name), depth + 1)}" for name in names[kind][1]]
        return f"{kind.__name__}({', '.join(pairs)})"
    return kind.__name__
