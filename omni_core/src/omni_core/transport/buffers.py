"""Flat runs of bytes on the host or on a GPU: how relays take them, copy them, and keep pools of them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import Any, Protocol

from omni_core.errors import RelayError

Buffer = Any
"""A flat ``memoryview`` of bytes, or a flat ``torch.uint8`` tensor of a GPU."""


def flat(buffer: Any) -> Buffer:
    """The bytes of a contiguous tensor, or of anything with a C-contiguous buffer, without a copy.

    Raises:
        RelayError: its memory is not contiguous.
    """
    if hasattr(buffer, "detach"):
        import torch

        if not buffer.is_contiguous():
            raise RelayError("only contiguous tensors can be transferred; call contiguous() first")
        tensor = buffer.detach().reshape(-1).view(torch.uint8)
        return tensor if tensor.device.type != "cpu" else _view(tensor.numpy())
    return _view(buffer)


def _view(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise RelayError("only C-contiguous memory can be transferred")
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def on_host(buffer: Buffer) -> bool:
    """Whether a flat buffer lies in the memory of the host."""
    return isinstance(buffer, memoryview)


def address_of(buffer: Buffer) -> int:
    """Where a flat buffer begins; 0 if nobody may write there or nothing is in it."""
    if not on_host(buffer):
        return int(buffer.data_ptr())
    if buffer.readonly or not buffer.nbytes:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def copy(destination: Buffer, source: Buffer) -> None:
    """All of ``source`` into ``destination``, which is as long. Done when it returns, on a GPU too."""
    if on_host(destination) and on_host(source):
        destination[:] = source
        return
    if not source.nbytes:
        return
    _tensor(destination).copy_(_tensor(source))
    for each in (destination, source):
        wait_for_device(each)


def wait_for_device(buffer: Buffer) -> None:
    """Return when what was begun on the GPU of ``buffer`` is done; on the host, at once.

    The engines of relays know nothing of a GPU's streams.
    """
    if not on_host(buffer) and buffer.is_cuda:
        import torch

        torch.cuda.current_stream(buffer.device).synchronize()


def _tensor(buffer: Buffer) -> Any:
    """A flat buffer as a tensor, without a copy unless it is read-only memory of the host."""
    import torch

    if not on_host(buffer):
        return buffer
    return torch.frombuffer(bytearray(buffer) if buffer.readonly else buffer, dtype=torch.uint8)


class Memory(Protocol):
    """The bytes of a pool. ``address`` is where they begin, ``device`` where they lie (``"cpu"``, ``"cuda:1"``)."""

    address: int
    device: str
    size: int

    def part(self, offset: int, nbytes: int) -> Buffer: ...

    def close(self) -> None: ...


class HostMemory:
    """Anonymous pages, touched at first use, so that an unused pool costs nothing."""

    device = "cpu"

    def __init__(self, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(-1, size)
        self._view = memoryview(self._map)
        self.address = address_of(self._view)

    def part(self, offset: int, nbytes: int) -> memoryview:
        return self._view[offset : offset + nbytes]

    def close(self) -> None:
        """Unmap now, or when the last of the parts that are out dies."""
        self._view.release()
        with contextlib.suppress(BufferError):
            self._map.close()


class DeviceMemory:
    """One allocation of torch's on a device."""

    def __init__(self, size: int, device: str) -> None:
        import torch

        self.size = size
        self.device = device
        self._bytes: Any = torch.empty(size, dtype=torch.uint8, device=device)
        self.address = int(self._bytes.data_ptr())

    def part(self, offset: int, nbytes: int) -> Buffer:
        return self._bytes[offset : offset + nbytes]

    def close(self) -> None:
        self._bytes = None


def make_memory(size: int, device: str) -> Memory:
    """``size`` bytes on ``"cpu"`` or ``"cuda:N"``."""
    return HostMemory(size) if device == "cpu" else DeviceMemory(size, device)
