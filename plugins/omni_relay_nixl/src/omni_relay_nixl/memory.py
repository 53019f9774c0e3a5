"""The memory that transfers read and write: on the host, or on a GPU. Registered once."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Protocol


class Memory(Protocol):
    """``kind`` and ``device`` are what NIXL calls them; ``address`` is where the bytes begin."""

    kind: str
    device: int
    address: int

    def write(self, offset: int, source: memoryview) -> None: ...

    def read(self, offset: int, destination: memoryview) -> None: ...


class HostMemory:
    """Anonymous pages, touched at first use."""

    kind, device = "DRAM", 0

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self._view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def write(self, offset: int, source: memoryview) -> None:
        self._view[offset : offset + source.nbytes] = source

    def read(self, offset: int, destination: memoryview) -> None:
        destination[:] = self._view[offset : offset + destination.nbytes]


class DeviceMemory:
    """One allocation of a GPU."""

    kind = "VRAM"

    def __init__(self, size: int, device: str) -> None:
        import torch

        self._bytes: Any = torch.empty(size, dtype=torch.uint8, device=device)
        self._from: Any = torch.frombuffer
        self._kind: Any = torch.uint8
        self.device = self._bytes.get_device()
        self.address = self._bytes.data_ptr()

    def write(self, offset: int, source: memoryview) -> None:
        if source.nbytes:
            self._bytes[offset : offset + source.nbytes].copy_(self._from(bytearray(source), dtype=self._kind))

    def read(self, offset: int, destination: memoryview) -> None:
        if destination.nbytes:
            part = self._bytes[offset : offset + destination.nbytes]
            self._from(destination, dtype=self._kind).copy_(part)


def memory(size: int, device: str) -> Memory:
    """``size`` bytes on ``"cpu"`` or ``"cuda:N"``."""
    return HostMemory(size) if device == "cpu" else DeviceMemory(size, device)
