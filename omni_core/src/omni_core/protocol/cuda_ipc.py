"""Tensors that stay where they are, between two processes that use the same GPU: a handle travels as plain data (seed 001).

torch counts the references of exported memory over processes: the sender's allocator gives it to nobody else until the receiver's
tensor is gone. Memory whose message is dropped unread stays exported until the sending process ends.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing import reductions


def export(tensor: torch.Tensor) -> list[Any]:
    """A CUDA tensor as plain data: shape, strides, offset, dtype, device, and the handles of its memory and its event."""
    _, arguments = reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    _, shape, strides, offset, _, dtype, device, *handles = arguments
    return [list(shape), list(strides), offset, str(dtype).removeprefix("torch."), device, *handles]


def rebuild(exported: list[Any]) -> torch.Tensor:
    """The tensor of :func:`export` in another process: the same memory, read-only by contract."""
    shape, strides, offset, dtype, device, *handles = exported
    kind = getattr(torch, dtype)
    tensor: torch.Tensor = reductions.rebuild_cuda_tensor(  # type: ignore[no-untyped-call]
        torch.Tensor, torch.Size(shape), tuple(strides), offset, torch.storage.TypedStorage, kind, device, *handles
    )
    return tensor
