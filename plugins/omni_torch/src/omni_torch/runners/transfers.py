"""Copies of small tensors between the host and a device for which the host does not wait.

A step sends ids, positions and slots. A copy from ordinary memory waits for all that a GPU has been given to compute, so a step could not
be enqueued while it still computes. Pinned memory is PyTorch's: it is used again only when the copies that it served are over.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the host's on ``device``."""
    return _pinned_for(device, values).to(device, non_blocking=True)


def all_to_device(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return tensors of the host's on ``device``; those of one dtype travel to a GPU as one."""
    if device.type != "cuda":
        return [each.to(device) for each in tensors]
    there = {}
    for dtype in {each.dtype for each in tensors}:
        joined = torch.cat([each.reshape(-1) for each in tensors if each.dtype == dtype])
        sizes = [each.numel() for each in tensors if each.dtype == dtype]
        there[dtype] = iter(to_device(joined, device).split(sizes))
    return [next(there[each.dtype]).view(each.shape) for each in tensors]


def copy_into(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy a tensor of the host or of the device into one of the device, of the same dtype."""
    target.copy_(_pinned_for(target.device, values), non_blocking=True)


def _pinned_for(device: torch.device, values: torch.Tensor) -> torch.Tensor:
    """Return a copy of the host's ``values`` in pinned memory if ``device`` is a GPU, else ``values``."""
    return values.pin_memory() if device.type == "cuda" and values.device.type == "cpu" else values


class Arriving:
    """Rows on their way from a device to the host; the copy begins when what computes them has ended."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._over: torch.cuda.Event | None = None
        if rows.device.type == "cuda":
            self._rows = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            self._rows.copy_(rows, non_blocking=True)
            self._over = torch.cuda.Event()
            self._over.record(torch.cuda.current_stream(rows.device))
        else:
            self._rows = rows.cpu()

    def row(self, index: int) -> torch.Tensor:
        """Wait for row ``index``; return ``[1, ...]`` in memory of its own, which neither keeps nor sends the others."""
        if self._over is not None:
            self._over.synchronize()
        return self._rows[index : index + 1].clone()
