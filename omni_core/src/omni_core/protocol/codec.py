"""The wire codec: msgpack with extension types for what msgpack lacks; never pickle.

Tuples stay tuples, dict keys keep their types, and tensors, arrays and registered attrs classes travel as extension
types, so nothing a user sends can be mistaken for one. Large tensors may be kept out of the message: see
:func:`encode_split`. Neither torch nor numpy is imported unless a value of theirs arrives.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import msgpack
from attrs import define, field

from omni_core.errors import CodecError
from omni_core.protocol import messages, outputs
from omni_core.protocol.buffers import Buffer, copy, flat, host_bytes, on_host
from omni_core.protocol.error_info import message_of

ALIGNMENT = 64
"""Every out-of-band buffer starts at a multiple of this many bytes."""

OUT_OF_BAND_BYTES = 2048
"""Tensors below this size stay in the header even in :func:`encode_split`: a copy is cheaper than its bookkeeping."""

_PACK_BUFFER_BYTES = 4096
"""Where packing starts. msgpack's own default of 1 MiB costs a fresh mapping for every nested value: 10 us each, measured."""

_TUPLE, _SET, _FROZENSET, _BIG_INTEGER, _BYTEARRAY, _ATTRS, _TENSOR, _ARRAY, _SCALAR, _CUDA, _STAYING = range(1, 12)

T = TypeVar("T", bound=type)


@define
class EncodedValue:
    """A value in two parts: ``header`` (msgpack) and the raw bytes of its large tensors.

    Attributes:
        header: the msgpack document; large tensors in it are offsets into the bytes that follow.
        buffers: flat byte buffers, in order, with the objects that own their memory; on a GPU for tensors that stay there.
        offsets: where each buffer starts; multiples of :data:`ALIGNMENT`.
        nbytes: total size of the out-of-band bytes, padding included; 0 when there are none.
        has_tensors: torch tensors are in it, large or small.
    """

    header: bytes
    buffers: list[Buffer] = field(factory=list)
    offsets: list[int] = field(factory=list)
    nbytes: int = 0
    owners: list[Any] = field(factory=list, repr=False)
    has_tensors: bool = False

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


_classes: dict[str, tuple[type, tuple[str, ...]]] = {}
_names: dict[type, tuple[str, tuple[str, ...]]] = {}


def register(cls: T) -> T:
    """Let instances of an attrs class travel. Both sides must have imported the module that registers it.

    Usable as a decorator. The wire name is the class's module and qualified name; fields travel by position.

    Raises:
        TypeError: ``cls`` is no attrs class.
    """
    registered = cls
    if not attrs.has(cls):
        raise TypeError(f"{cls!r} is not an attrs class and cannot be registered with the codec")
    names = tuple(attribute.name for attribute in attrs.fields(cls) if attribute.init)
    name = f"{cls.__module__}.{cls.__qualname__}"
    _classes[name] = (cls, names)
    _names[cls] = (name, names)
    return registered


def encode(value: Any) -> bytes:
    """``value`` as one self-contained document.

    Raises:
        CodecError: something in it cannot be sent; the message names its path.
    """
    return _Encoder(out_of_band=None).document(value)


def encode_whole(value: Any) -> tuple[bytes, bool]:
    """As :func:`encode`, and whether torch tensors are in it, so that its reader needs torch."""
    encoder = _Encoder(out_of_band=None)
    return encoder.document(value), encoder.has_tensors


def encode_split(value: Any, *, same_gpu: bool = False, device: str = "cpu") -> EncodedValue:
    """``value`` with its large tensors and arrays kept apart, to be written straight into relay memory.

    ``same_gpu``: the receiver uses the GPU of this process, so CUDA tensors stay there and only their handles travel.
    ``device``: where the relay's memory lies: large tensors of that GPU are gathered there and do not come to the host.

    Raises:
        CodecError: something in it cannot be sent; the message names its path.
    """
    encoded = EncodedValue(b"")
    encoder = _Encoder(out_of_band=encoded, same_gpu=same_gpu, device=device)
    encoded.header = encoder.document(value)
    encoded.has_tensors = encoder.has_tensors
    return encoded


def decode(document: bytes | memoryview, buffer: Buffer | None = None) -> Any:
    """The value of :func:`encode` or, with the out-of-band bytes in ``buffer``, of :func:`encode_split`.

    A ``buffer`` on a GPU keeps the tensors that were sent from one; everything else comes to the host. Tensors are views of ``buffer``
    (or of the document), read-only by contract; they keep it alive.

    Raises:
        CodecError: the bytes are not a document of this codec.
    """

    try:
        return _Decoder(buffer).document(document)
    except CodecError:
        raise
    except BaseException as error:  # a class's constructor may raise anything, and event loops decode
        raise CodecError(f"received bytes cannot be decoded: {message_of(error, with_type=True)}") from error


class _Encoder:
    """One encoding run; collects out-of-band buffers as it meets them."""

    def __init__(self, out_of_band: EncodedValue | None, same_gpu: bool = False, device: str = "cpu") -> None:
        self._out_of_band = out_of_band
        self._same_gpu = same_gpu
        self._device = device
        self.has_tensors = False

    def document(self, value: Any) -> bytes:
        try:
            return self._pack(value)
        except (CodecError, TypeError, ValueError, OverflowError, RecursionError, UnicodeError) as error:
            raise CodecError(_explain(value, error)) from error

    def _pack(self, value: Any) -> bytes:
        packed: bytes = msgpack.packb(
            value,
            default=self._extension,
            strict_types=True,
            unicode_errors="surrogatepass",
            buf_size=_PACK_BUFFER_BYTES,
        )
        return packed

    def _extension(self, value: Any) -> msgpack.ExtType:
        kind = type(value)
        if kind is tuple:
            return msgpack.ExtType(_TUPLE, self._pack(list(value)))
        registered = _names.get(kind)
        if registered is not None:
            name, names = registered
            fields = [name, *(getattr(value, each) for each in names)]
            return msgpack.ExtType(_ATTRS, self._pack(fields))
        if kind is set or kind is frozenset:
            return msgpack.ExtType(_SET if kind is set else _FROZENSET, self._pack(list(value)))
        if kind is int:
            return msgpack.ExtType(_BIG_INTEGER, str(value).encode())
        if kind is bytearray:
            return msgpack.ExtType(_BYTEARRAY, bytes(value))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(torch, value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray):
            return self._array(numpy, value)
        raise CodecError(f"a {kind.__module__}.{kind.__qualname__} cannot be sent")

    def _tensor(self, torch: Any, tensor: Any) -> msgpack.ExtType:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise CodecError(f"a tensor of layout {tensor.layout} cannot be sent; make it dense first")
        self.has_tensors = True
        if self._same_gpu and tensor.is_cuda:
            from omni_core.protocol import cuda_ipc

            return msgpack.ExtType(_CUDA, msgpack.packb(cuda_ipc.export(tensor.detach())))
        tensor = tensor.detach().resolve_conj().resolve_neg()
        if tensor.is_cuda and str(tensor.device) == self._device and tensor.nbytes >= OUT_OF_BAND_BYTES:
            tensor = tensor.contiguous()
            description = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            return self._with_bytes(_STAYING, description, flat(tensor), owner=tensor)
        tensor = tensor.to("cpu").contiguous()
        size = tensor.numel() * tensor.element_size()
        raw = memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B") if size else memoryview(b"")
        description = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        return self._with_bytes(_TENSOR, description, raw, owner=tensor)

    def _array(self, numpy: Any, array: Any) -> msgpack.ExtType:
        code = _SCALAR if isinstance(array, numpy.generic) else _ARRAY
        plain = numpy.asarray(array, order="C")
        if plain.dtype.hasobject or plain.dtype.names is not None:
            raise CodecError(
                f"an array of dtype {plain.dtype} cannot be sent; only plain numbers, booleans and strings"
            )
        raw = memoryview(plain.reshape(-1).view(numpy.uint8)) if plain.size else memoryview(b"")
        return self._with_bytes(code, [plain.dtype.str, list(plain.shape)], raw, owner=plain)

    def _with_bytes(self, code: int, description: list[Any], raw: Buffer, owner: Any) -> msgpack.ExtType:
        apart = self._out_of_band
        if apart is None or raw.nbytes < OUT_OF_BAND_BYTES:
            return msgpack.ExtType(code, msgpack.packb([*description, host_bytes(raw)]))
        offset = -(-apart.nbytes // ALIGNMENT) * ALIGNMENT
        apart.buffers.append(raw)
        apart.offsets.append(offset)
        apart.owners.append(owner)
        apart.nbytes = offset + raw.nbytes
        return msgpack.ExtType(code, msgpack.packb([*description, offset]))


class _Decoder:
    """One decoding run. (A closure that hands itself on would be a cycle, and keep relay memory until collected.)"""

    def __init__(self, buffer: Buffer | None) -> None:
        self.buffer = buffer

    def document(self, data: bytes | memoryview) -> Any:
        return msgpack.unpackb(data, ext_hook=self, strict_map_key=False, unicode_errors="surrogatepass")

    def __call__(self, code: int, data: bytes) -> Any:
        return _DECODERS[code](self, data)


def _located(data: bytes, item_bytes: Callable[[str], int], buffer: Buffer | None) -> tuple[str, list[int], Any]:
    """Dtype, shape and the bytes of a tensor, wherever they lie, checked to be there in full."""
    dtype, shape, place = msgpack.unpackb(data)
    size = item_bytes(dtype)
    for length in shape:
        size *= length
    if isinstance(place, bytes):
        raw: Any = memoryview(place)
    elif buffer is None or place < 0 or place + size > buffer.nbytes:
        raise CodecError(
            f"a tensor of {size} bytes at offset {place} lies outside the bytes that came with the message"
        )
    else:
        raw = buffer[place : place + size]
    if raw.nbytes != size:
        raise CodecError(f"a tensor of shape {shape} needs {size} bytes, {raw.nbytes} came")
    return dtype, shape, raw


def _decode_tensor(decoder: _Decoder, data: bytes, stays: bool = False) -> Any:
    import torch

    dtype, shape, raw = _located(data, lambda name: _torch_dtype(torch, name).itemsize, decoder.buffer)
    kind = _torch_dtype(torch, dtype)
    if not on_host(raw):
        tensor = raw.view(kind).reshape(shape)
        return tensor if stays else tensor.cpu()
    if raw.nbytes == 0:
        return torch.empty(shape, dtype=kind)
    if raw.readonly:
        # Payloads are read-only by contract; torch has no read-only tensors and would warn once per process.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
    return torch.frombuffer(raw, dtype=kind).reshape(shape)


def _decode_cuda(decoder: _Decoder, data: bytes) -> Any:
    from omni_core.protocol import cuda_ipc

    return cuda_ipc.rebuild(msgpack.unpackb(data))


def _torch_dtype(torch: Any, name: str) -> Any:
    kind = getattr(torch, name, None)
    if not isinstance(kind, torch.dtype):
        raise CodecError(f"{name!r} is not a torch dtype")
    return kind


def _decode_array(decoder: _Decoder, data: bytes) -> Any:
    import numpy

    dtype, shape, raw = _located(data, lambda name: numpy.dtype(name).itemsize, decoder.buffer)
    return numpy.frombuffer(raw if on_host(raw) else host_bytes(raw), dtype=dtype).reshape(shape)


def _decode_attrs(decoder: _Decoder, data: bytes) -> Any:
    name, *values = decoder.document(data)
    if name not in _classes:
        raise CodecError(
            f"class {name!r} is not registered here; import the module that registers it in this process too"
        )
    cls, names = _classes[name]
    return cls(**{each.lstrip("_"): value for each, value in zip(names, values, strict=True)})


_DECODERS: dict[int, Callable[[_Decoder, bytes], Any]] = {
    _TUPLE: lambda decoder, data: tuple(decoder.document(data)),
    _SET: lambda decoder, data: set(decoder.document(data)),
    _FROZENSET: lambda decoder, data: frozenset(decoder.document(data)),
    _BIG_INTEGER: lambda decoder, data: int(data),
    _BYTEARRAY: lambda decoder, data: bytearray(data),
    _ATTRS: _decode_attrs,
    _TENSOR: _decode_tensor,
    _ARRAY: _decode_array,
    _SCALAR: lambda decoder, data: _decode_array(decoder, data)[()],
    _CUDA: _decode_cuda,
    _STAYING: lambda decoder, data: _decode_tensor(decoder, data, stays=True),
}


def _explain(value: Any, error: BaseException) -> str:
    """Where in ``value`` the first thing lies that cannot be sent, found by encoding leaf after leaf."""
    if isinstance(error, RecursionError) or "recursion limit" in str(error):
        return "the payload is nested too deeply, or contains itself"
    path, leaf_error = _first_failure(value, "payload", error)
    return f"{path}: {message_of(leaf_error)}"


def _first_failure(value: Any, path: str, error: BaseException) -> tuple[str, BaseException]:
    for child_path, child in _children(value, path):
        try:
            _Encoder(out_of_band=EncodedValue(b""))._pack(child)
        except Exception as child_error:
            return _first_failure(child, child_path, child_error)
    return path, error


def _children(value: Any, path: str) -> list[tuple[str, Any]]:
    if type(value) is dict:
        keys = [(f"{path} key {key!r}", key) for key in value]
        return keys + [(f"{path}[{key!r}]", child) for key, child in value.items()]
    if type(value) in (list, tuple, set, frozenset):
        return [(f"{path}[{index}]", child) for index, child in enumerate(value)]
    if type(value) in _names:
        return [(f"{path}.{name}", getattr(value, name)) for name in _names[type(value)][1]]
    return []


for _cls in (
    messages.OmniRequest,
    messages.StagePayload,
    messages.ErrorInfo,
    messages.SubmitMessage,
    messages.DataReadyMessage,
    messages.CompleteMessage,
    messages.StageSpan,
    messages.StreamMessage,
    messages.AbortMessage,
    messages.ProfileMessage,
    messages.ProfileReport,
    messages.ProfileRequest,
    messages.ProfileDone,
    messages.StatusRequest,
    messages.StatusReport,
    messages.PeerDownMessage,
    messages.PeerDownReport,
    messages.PeerUpMessage,
    messages.PeerFailedMessage,
    messages.PingMessage,
    messages.PongMessage,
    messages.ShutdownMessage,
    messages.ReadyMessage,
    messages.ProcessFailedMessage,
    messages.StageStatistics,
    messages.StatisticsRequest,
    messages.WaitingReport,
    messages.WaitingRequest,
    outputs.TextChunk,
    outputs.AudioChunk,
    outputs.TextResult,
    outputs.AudioResult,
):
    register(_cls)
