"""The memory of relay pools, on the host or on a GPU."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any, Protocol

from omni_core.api import Buffer, address_of


class Memory(Protocol):
    """The bytes of a pool at ``address`` on ``device`` (``"cpu"``, ``"cuda:1"``)."""

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
        """Unmap now, or when the last exported view is released."""
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
    """Allocate ``size`` bytes on ``"cpu"`` or ``"cuda:N"``."""
    return HostMemory(size) if device == "cpu" else DeviceMemory(size, device)
