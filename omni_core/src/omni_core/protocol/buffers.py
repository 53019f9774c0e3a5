"""Flat runs of bytes on the host or on a GPU: how they are taken, and copied from one to the other."""

from __future__ import annotations

import ctypes
from typing import Any

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
        return _view(tensor.numpy()) if tensor.is_cpu else tensor
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
    """All of ``source`` into ``destination``, which is as long. Done when it returns; within a GPU, begun on its current stream."""
    if on_host(destination) and on_host(source):
        destination[:] = source
        return
    if not source.nbytes:
        return
    as_tensor(destination).copy_(as_tensor(source))
    if on_host(destination) or on_host(source):
        wait_for_device(source if on_host(destination) else destination)


def wait_for_device(buffer: Buffer) -> None:
    """Return when what was begun on the GPU of ``buffer`` is done; on the host, at once.

    The engines of relays know nothing of a GPU's streams.
    """
    if not on_host(buffer) and buffer.is_cuda:
        import torch

        torch.cuda.current_stream(buffer.device).synchronize()


def as_tensor(buffer: Buffer) -> Any:
    """A flat buffer as a tensor, without a copy unless it is read-only memory of the host."""
    import torch

    if not on_host(buffer):
        return buffer
    return torch.frombuffer(bytearray(buffer) if buffer.readonly else buffer, dtype=torch.uint8)


def host_bytes(buffer: Buffer) -> bytes:
    """A copy on the host."""
    made = bytearray(buffer.nbytes)
    copy(memoryview(made), buffer)
    return bytes(made)


def empty(nbytes: int, device: str) -> Buffer:
    """New memory on ``"cpu"`` or ``"cuda:N"``."""
    if device == "cpu":
        return memoryview(bytearray(nbytes))
    import torch

    return torch.empty(nbytes, dtype=torch.uint8, device=device)
