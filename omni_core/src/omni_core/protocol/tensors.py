"""Tensors on their way between processes: the only module of the core that imports torch, and only for tensors.

A sender finds torch imported already, because the tensor was made with it. A receiver needs it when the first tensor
arrives; :mod:`omni_core.protocol.lazy_torch` imports it beside the event loop before that. A *buffer* is a flat
``memoryview`` of host memory or a flat ``torch.uint8`` tensor of a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omni_core.errors import CodecError, RelayError
from omni_core.references import imported

Tensor = Any
"""A ``torch.Tensor``, for annotations of modules that must not import torch."""

Buffer = Any
"""A flat ``memoryview`` of bytes, or a flat ``torch.uint8`` tensor of a GPU."""

_LIBRARIES = ("libc10.so", "libtorch_cpu.so")


def import_torch() -> Any:
    """The ``torch`` module, imported now if it is not yet; that takes a second or more.

    The large shared libraries are loaded first, by a foreign call during which other threads run; the import system would
    hold the interpreter's lock meanwhile.

    Raises:
        ImportError: torch is not installed, or it is broken.
    """
    if "torch" not in sys.modules:
        load_libraries()
    import torch  # waits for an import that another thread has begun

    return torch


def load_libraries() -> None:
    """Load torch's libraries, as far as they are found. The import loads the rest and reports what is wrong."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    with contextlib.suppress(AttributeError, OSError):
        load = ctypes.CDLL(None).dlopen
        load.restype = ctypes.c_void_p
        for name in _LIBRARIES:
            load(os.fsencode(Path(spec.origin).parent / "lib" / name), os.RTLD_LAZY)


def flat(buffer: Any) -> Buffer:
    """The bytes of a contiguous tensor, or of any object with a C-contiguous buffer, without a copy.

    Raises:
        RelayError: the memory is not contiguous.
    """
    if hasattr(buffer, "detach"):
        if not buffer.is_contiguous():
            raise RelayError("only contiguous tensors can be transferred; call contiguous() first")
        tensor = buffer.detach().reshape(-1).view(import_torch().uint8)
        return _view(tensor.numpy()) if tensor.is_cpu else tensor
    return _view(buffer)


def _view(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise RelayError("only C-contiguous memory can be transferred")
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def on_host(buffer: Buffer) -> bool:
    """Return whether a buffer lies in host memory."""
    return isinstance(buffer, memoryview)


def address_of(buffer: Buffer) -> int:
    """The address of a buffer's first byte; 0 if it is read-only host memory or empty."""
    if not on_host(buffer):
        return int(buffer.data_ptr())
    if buffer.readonly or not buffer.nbytes:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def copy(destination: Buffer, source: Buffer) -> None:
    """Copy all of ``source`` into ``destination`` (equal sizes). Complete on return; within one GPU, queued on its current stream."""
    if on_host(destination) and on_host(source):
        destination[:] = source
        return
    if not source.nbytes:
        return
    as_tensor(destination).copy_(as_tensor(source))
    if on_host(destination) or on_host(source):
        wait_for_device(source if on_host(destination) else destination)


def wait_for_device(buffer: Buffer) -> None:
    """Return when the work queued on the current stream of a buffer's GPU is done; at once for host memory.

    Relay engines read memory without regard to a GPU's streams.
    """
    if not on_host(buffer) and buffer.is_cuda:
        import_torch().cuda.current_stream(buffer.device).synchronize()


def as_tensor(buffer: Buffer) -> Tensor:
    """A buffer as a ``uint8`` tensor, without a copy unless it is read-only host memory."""
    if not on_host(buffer):
        return buffer
    torch = import_torch()
    return torch.frombuffer(bytearray(buffer) if buffer.readonly else buffer, dtype=torch.uint8)


def host_bytes(buffer: Buffer) -> bytes:
    """A copy of a buffer in host memory."""
    return bytes(buffer if on_host(buffer) else buffer.cpu().numpy())


def empty(nbytes: int, device: str) -> Buffer:
    """A new buffer on ``"cpu"`` or ``"cuda:N"``."""
    if device == "cpu":
        return memoryview(bytearray(nbytes))
    torch = import_torch()
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor; False where torch is not imported."""
    torch = imported("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def describe(tensor: Tensor) -> list[Any]:
    """Dtype name and shape of a tensor. Raises CodecError for sparse and quantized ones."""
    if tensor.layout is not import_torch().strided or tensor.is_quantized:
        raise CodecError(f"a tensor of layout {tensor.layout} cannot be sent; make it dense first")
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def bytes_of(tensor: Tensor, device: str) -> tuple[Buffer, Tensor]:
    """The bytes of a tensor in logical order, and the tensor that owns them.

    They stay on the GPU called ``device`` if the tensor is there; otherwise they are in host memory.
    """
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_cuda and str(tensor.device) == device:
        tensor = tensor.contiguous()
        return flat(tensor), tensor
    tensor = tensor.to("cpu").contiguous()
    size = tensor.numel() * tensor.element_size()
    raw = memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B") if size else memoryview(b"")
    return raw, tensor


def itemsize(dtype: str) -> int:
    """Bytes per element of a dtype name. Raises CodecError for an unknown one."""
    return int(_dtype(dtype).itemsize)


def _dtype(name: str) -> Any:
    torch = import_torch()
    kind = getattr(torch, name, None)
    if not isinstance(kind, torch.dtype):
        raise CodecError(f"{name!r} is not a torch dtype")
    return kind


def rebuild(dtype: str, shape: Sequence[int], raw: Buffer, stays: bool) -> Tensor:
    """The tensor of :func:`describe` over the bytes ``raw``, a view where they are. ``stays``: it may stay on a GPU."""
    kind = _dtype(dtype)
    if not on_host(raw):
        tensor = raw.view(kind).reshape(shape)
        return tensor if stays else tensor.cpu()
    torch = import_torch()
    if raw.nbytes == 0:
        return torch.empty(shape, dtype=kind)
    if raw.readonly:
        # Payloads are read-only by contract; torch has no read-only tensors and would warn once per process.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
    return torch.frombuffer(raw, dtype=kind).reshape(shape)


def export(tensor: Tensor) -> list[Any]:
    """A handle of a CUDA tensor as plain data, for another process that uses the same GPU: shape, strides, offset, dtype, device,
    and the CUDA IPC handles of its memory and its event.

    torch counts references over processes: the sender's allocator does not reuse the memory until the receiver's tensor is
    gone. Memory whose message is dropped unread stays exported until the sending process ends.
    """
    import_torch()
    from torch.multiprocessing import reductions

    _, arguments = reductions.reduce_tensor(tensor.detach())  # type: ignore[no-untyped-call]
    _, shape, strides, offset, _, dtype, device, *handles = arguments
    return [list(shape), list(strides), offset, str(dtype).removeprefix("torch."), device, *handles]


def open_exported(exported: list[Any]) -> Tensor:
    """The tensor of :func:`export` in another process: the same memory, read-only by contract."""
    torch = import_torch()
    from torch.multiprocessing import reductions

    shape, strides, offset, dtype, device, *handles = exported
    return reductions.rebuild_cuda_tensor(  # type: ignore[no-untyped-call]
        torch.Tensor,
        torch.Size(shape),
        tuple(strides),
        offset,
        torch.storage.TypedStorage,
        _dtype(dtype),
        device,
        *handles,
    )
