"""The wire codec: msgpack with extension types for what msgpack lacks; never pickle.

Tuples stay tuples, dict keys keep their types, and tensors, arrays and registered attrs classes travel as extension
types, so nothing a user sends can be mistaken for one. Large tensors may be kept out of the document: see
:func:`encode_split`. Neither torch nor numpy is imported unless a value of theirs arrives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgpack
from attrs import define, field

from omni_core.errors import CodecError, message_of
from omni_core.protocol import tensors
from omni_core.protocol.registry import classes, names, register, values
from omni_core.protocol.structure import MAX_DEPTH, check_limits, is_large, locate_failure
from omni_core.protocol.tensors import Buffer, copy, host_bytes, on_host
from omni_core.references import imported

__all__ = ["Body", "EncodedValue", "decode", "encode", "encode_split", "encode_whole", "is_large", "register"]

ALIGNMENT = 64
"""Every out-of-band buffer starts at a multiple of this many bytes."""

OUT_OF_BAND_BYTES = 2048
"""Tensors below this size stay in the header even in :func:`encode_split`: a copy is cheaper than its bookkeeping."""

LARGE_DOCUMENT_BYTES = 2**15
"""From this size on the document of an encoded value is out-of-band bytes of the message that it is a part of."""

_OWN_DEPTH = 8
"""Extension types around what users nest, and in it."""

_MAX_DIMENSIONS = 64
"""That of numpy and torch."""

_PACK_BUFFER_BYTES = 4096
"""Initial size of msgpack's buffer. Its own default of 1 MiB costs a fresh mapping for every nested value: 10 us each, measured."""

_TUPLE, _SET, _FROZENSET, _BIG_INTEGER, _BYTEARRAY, _ATTRS, _TENSOR, _ARRAY, _SCALAR, _CUDA, _STAYING, _ENCODED = range(
    1, 13
)


@define
class EncodedValue:
    """A value in two parts: ``header`` (msgpack) and the raw bytes of its large tensors.

    It may itself be part of a message. Its buffers, and a large header, are then out-of-band bytes of the message, not copied into the
    document, and its reader finds the buffers as one piece.

    Attributes:
        header: the msgpack document; large tensors in it are offsets into the bytes that follow.
        buffers: flat byte buffers, in order; on a GPU for tensors that stay there.
        offsets: where each buffer starts; multiples of :data:`ALIGNMENT`.
        nbytes: total size of the out-of-band bytes, padding included; 0 when there are none.
        owners: the objects that own the memory of ``buffers``.
        has_tensors: torch tensors are in it, large or small.
    """

    header: bytes | memoryview
    buffers: list[Buffer] = field(factory=list)
    offsets: list[int] = field(factory=list)
    nbytes: int = 0
    owners: list[Any] = field(factory=list, repr=False)
    has_tensors: bool = False

    def __len__(self) -> int:
        """Bytes of the document; those of large tensors are not counted."""
        return len(self.header)

    def add(self, raw: Buffer, owner: Any) -> int:
        """Append a buffer; its offset."""
        offset = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        self.buffers.append(raw)
        self.offsets.append(offset)
        self.owners.append(owner)
        self.nbytes = offset + raw.nbytes
        return offset

    def parts(self) -> list[Buffer]:
        """The buffers with the padding between them: concatenated, they are the out-of-band bytes."""
        found, end = [], 0
        for offset, buffer in zip(self.offsets, self.buffers, strict=True):
            if offset > end:
                found.append(memoryview(bytes(offset - end)))
            found.append(buffer)
            end = offset + buffer.nbytes
        return found

    def joined(self) -> bytes:
        """The out-of-band bytes in one piece, on the host."""
        if len(self.buffers) == 1:
            return host_bytes(self.buffers[0])
        whole = bytearray(self.nbytes)
        self.write_into(memoryview(whole))
        return bytes(whole)

    def write_into(self, destination: Buffer) -> None:
        """Copy every buffer to its place in ``destination`` (at least ``nbytes`` writable bytes)."""
        for offset, buffer in zip(self.offsets, self.buffers, strict=True):
            copy(destination[offset : offset + buffer.nbytes], buffer)


Body = bytes | EncodedValue
"""An encoded value as a field of a message."""


def encode(value: Any) -> bytes:
    """``value`` as one self-contained document.

    Raises:
        CodecError: something in it cannot be sent, or there is too much of it; the message names its path.
    """
    return _Encoder(out_of_band=None).document(value)


def encode_whole(value: Any, *, checked: bool = False) -> tuple[Body, bool]:
    """``value`` for a field of a message, and whether torch tensors are in it, so that its reader needs torch.

    A document alone where it is small and there are no large tensors or arrays. ``checked``: see :func:`encode_split`.

    Raises:
        CodecError: as for :func:`encode`.
    """
    encoded = encode_split(value, checked=checked)
    is_small = not encoded.nbytes and len(encoded.header) < LARGE_DOCUMENT_BYTES
    return bytes(encoded.header) if is_small else encoded, encoded.has_tensors


def encode_split(
    value: Any,
    same_gpu: bool = False,
    device: str = "cpu",
    checked: bool = False,
    apart_from: int = OUT_OF_BAND_BYTES,
) -> EncodedValue:
    """``value`` with its large tensors and arrays kept apart, to be written straight into relay memory or to a socket.

    ``same_gpu``: the receiver uses the GPU of this process, so CUDA tensors stay there and only their handles travel.
    ``device``: where the relay's memory lies: large tensors of that GPU are gathered there and do not come to the host.
    ``checked``: the limits on depth and size need no check: :func:`is_large` made it, or everything that users made is encoded already.

    ``apart_from``: the size in bytes from which on a tensor or array is a large one.

    Raises:
        CodecError: as for :func:`encode`.
    """
    encoded = EncodedValue(b"")
    encoder = _Encoder(encoded, same_gpu, device, apart_from)
    encoded.header = encoder.document(value, checked)
    encoded.has_tensors = encoder.has_tensors
    return encoded


def decode(document: bytes | memoryview | EncodedValue, buffer: Buffer | None = None) -> Any:
    """The value of :func:`encode` or, with the out-of-band bytes in ``buffer``, of :func:`encode_split`.

    A ``buffer`` on a GPU keeps the tensors that were sent from one; everything else comes to the host. Tensors are views of ``buffer``
    (or of the document), read-only by contract; they keep it alive.

    Raises:
        CodecError: the bytes are not a document of this codec.
    """
    if isinstance(document, EncodedValue):
        if document.nbytes:
            buffer = document.buffers[0] if len(document.buffers) == 1 else memoryview(document.joined())
        document = document.header
    try:
        return _Decoder(buffer).document(document)
    except CodecError:
        raise
    except BaseException as error:  # a class's constructor may raise anything, and event loops decode
        failure = CodecError(f"received bytes cannot be decoded: {message_of(error, with_type=True)}")
    raise failure  # not above: it would have the other one as its context


class _Encoder:
    """One encoding run; collects out-of-band buffers as it meets them."""

    def __init__(
        self,
        out_of_band: EncodedValue | None,
        same_gpu: bool = False,
        device: str = "cpu",
        apart_from: int = OUT_OF_BAND_BYTES,
    ) -> None:
        self._out_of_band = out_of_band
        self._apart_from = apart_from
        self._same_gpu = same_gpu
        self._device = device
        self.has_tensors = False

    def document(self, value: Any, checked: bool = False) -> bytes:
        if not checked:
            check_limits(value)
        try:
            if type(value) in names:
                extension = msgpack.ExtType(_ATTRS, self._fields(value))
                whole: bytes = msgpack.Packer(buf_size=_PACK_BUFFER_BYTES).pack(extension)
                return whole
            return self._pack(value)
        except (CodecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            path, reason = locate_failure(value, error, _Encoder(EncodedValue(b""))._pack)
            failure = CodecError(f"{path}: {message_of(reason)}")
        raise failure  # not above: it would have the other one as its context

    def _pack(self, value: Any) -> bytes:
        packer = msgpack.Packer(
            default=self._extension, strict_types=True, unicode_errors="surrogatepass", buf_size=_PACK_BUFFER_BYTES
        )
        packed: bytes = packer.pack(value)
        return packed

    def _fields(self, value: Any) -> bytes:
        """The wire name and the fields of an instance of a registered class."""
        kind = type(value)
        return self._pack([names[kind][0], *values[kind](value)])

    def _extension(self, value: Any) -> msgpack.ExtType:
        kind = type(value)
        if kind is tuple:
            return msgpack.ExtType(_TUPLE, self._pack(list(value)))
        if kind in names:
            return msgpack.ExtType(_ATTRS, self._fields(value))
        if kind is set or kind is frozenset:
            return msgpack.ExtType(_SET if kind is set else _FROZENSET, self._pack(list(value)))
        if kind is int:
            return msgpack.ExtType(_BIG_INTEGER, hex(value).encode())
        if kind is bytearray:
            return msgpack.ExtType(_BYTEARRAY, bytes(value))
        if kind is EncodedValue:
            return self._encoded(value)
        if tensors.is_tensor(value):
            return self._tensor(value)
        numpy = imported("numpy")
        if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray):
            return self._array(numpy, value)
        raise CodecError(f"a {kind.__module__}.{kind.__qualname__} cannot be sent")

    def _tensor(self, tensor: Any) -> msgpack.ExtType:
        description = tensors.describe(tensor)
        self.has_tensors = True
        if self._same_gpu and tensor.is_cuda:
            return msgpack.ExtType(_CUDA, msgpack.packb(tensors.export(tensor)))
        raw, owner = tensors.bytes_of(tensor, self._device if tensor.nbytes >= self._apart_from else "cpu")
        return self._with_bytes(_TENSOR if on_host(raw) else _STAYING, description, raw, owner)

    def _array(self, numpy: Any, array: Any) -> msgpack.ExtType:
        code = _SCALAR if isinstance(array, numpy.generic) else _ARRAY
        plain = numpy.asarray(array, order="C")
        if plain.dtype.hasobject or plain.dtype.names is not None:
            raise CodecError(
                f"an array of dtype {plain.dtype} cannot be sent; only plain numbers, booleans and strings"
            )
        raw = memoryview(plain.reshape(-1).view(numpy.uint8)) if plain.size else memoryview(b"")
        return self._with_bytes(code, [plain.dtype.str, list(plain.shape)], raw, owner=plain)

    def _encoded(self, value: EncodedValue) -> msgpack.ExtType:
        apart, header = self._out_of_band, value.header
        if apart is None:
            whole = [header, value.has_tensors, value.nbytes, value.joined()]
            return msgpack.ExtType(_ENCODED, msgpack.packb(whole))
        is_apart = len(header) >= LARGE_DOCUMENT_BYTES
        document = [apart.add(memoryview(header), header), len(header)] if is_apart else header
        description: list[Any] = [document, value.has_tensors, value.nbytes]
        place = -(-apart.nbytes // ALIGNMENT) * ALIGNMENT
        for part, owner in zip(value.buffers, value.owners, strict=True):
            apart.add(part, owner)
        return msgpack.ExtType(_ENCODED, msgpack.packb([*description, place]))

    def _with_bytes(self, code: int, description: list[Any], raw: Buffer, owner: Any) -> msgpack.ExtType:
        apart = self._out_of_band
        if apart is None or raw.nbytes < self._apart_from:
            return msgpack.ExtType(code, msgpack.packb([*description, host_bytes(raw)]))
        return msgpack.ExtType(code, msgpack.packb([*description, apart.add(raw, owner)]))


class _Decoder:
    """One decoding run. (A closure that hands itself on would be a cycle, and keep relay memory until collected.)"""

    def __init__(self, buffer: Buffer | None) -> None:
        self.buffer = buffer
        self._depth = 0

    def document(self, data: bytes | memoryview) -> Any:
        return msgpack.unpackb(data, ext_hook=self, strict_map_key=False, unicode_errors="surrogatepass")

    def __call__(self, code: int, data: bytes) -> Any:
        if self._depth > MAX_DEPTH + _OWN_DEPTH:
            raise CodecError(f"nested too deeply: more than {MAX_DEPTH} containers in each other")
        self._depth += 1
        try:
            return _DECODERS[code](self, data)
        finally:
            self._depth -= 1

    def bytes_at(self, place: bytes | int, size: int) -> Buffer:
        """``size`` bytes: ``place`` itself, or those at that offset of the out-of-band bytes."""
        if isinstance(place, bytes):
            raw: Buffer = memoryview(place)
        elif self.buffer is None or place < 0 or place + size > self.buffer.nbytes:
            raise CodecError(f"{size} bytes at offset {place} lie outside the bytes that came with the message")
        else:
            raw = self.buffer[place : place + size]
        if raw.nbytes != size:
            raise CodecError(f"{size} bytes are needed, {raw.nbytes} came")
        return raw


def _decode_tensor(decoder: _Decoder, data: bytes, stays: bool = False) -> Any:
    dtype, shape, place = msgpack.unpackb(data)
    raw = decoder.bytes_at(place, _size(shape, tensors.itemsize(dtype)))
    return tensors.rebuild(dtype, shape, raw, stays)


def _decode_array(decoder: _Decoder, data: bytes) -> Any:
    import numpy

    dtype, shape, place = msgpack.unpackb(data)
    raw = decoder.bytes_at(place, _size(shape, numpy.dtype(dtype).itemsize))
    return numpy.frombuffer(raw if on_host(raw) else host_bytes(raw), dtype=dtype).reshape(shape)


def _size(shape: Any, itemsize: int) -> int:
    """The bytes of an array. Its shape is what a peer says it is."""
    if type(shape) is not list or len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise CodecError("the shape of an array must be a list of few non-negative integers")
    return itemsize * math.prod(shape)


def _decode_encoded(decoder: _Decoder, data: bytes) -> EncodedValue:
    header, has_tensors, nbytes, place = msgpack.unpackb(data)
    if isinstance(header, list):
        header = decoder.bytes_at(*header)
    found = EncodedValue(header, has_tensors=has_tensors)
    if nbytes:
        found.add(decoder.bytes_at(place, nbytes), None)
    return found


def _decode_attrs(decoder: _Decoder, data: bytes) -> Any:
    name, *given = decoder.document(data)
    if name not in classes:
        raise CodecError(
            f"class {name!r} is not registered here; import the module that registers it in this process too"
        )
    make, fields = classes[name]
    if len(given) != fields:
        raise CodecError(
            f"{len(given)} values came for the {fields} fields of {name}; is its class the same in this process?"
        )
    return make(*given)


_DECODERS: dict[int, Callable[[_Decoder, bytes], Any]] = {
    _TUPLE: lambda decoder, data: tuple(decoder.document(data)),
    _SET: lambda decoder, data: set(decoder.document(data)),
    _FROZENSET: lambda decoder, data: frozenset(decoder.document(data)),
    _BIG_INTEGER: lambda decoder, data: int(data, 16),
    _BYTEARRAY: lambda decoder, data: bytearray(data),
    _ATTRS: _decode_attrs,
    _TENSOR: _decode_tensor,
    _ARRAY: _decode_array,
    _SCALAR: lambda decoder, data: _decode_array(decoder, data)[()],
    _CUDA: lambda decoder, data: tensors.open_exported(msgpack.unpackb(data)),
    _STAYING: lambda decoder, data: _decode_tensor(decoder, data, stays=True),
    _ENCODED: _decode_encoded,
}
