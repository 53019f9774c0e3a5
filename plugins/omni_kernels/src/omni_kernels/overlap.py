"""Kernels that begin while the one before ends: programmatic dependent launch, on GPUs of compute capability 9.0 and above."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

AT_ONCE = 1
"""The next kernel may begin when this one has begun; it waits for this one's end before it reads."""

AFTER_LOADS = 2
"""The next kernel may begin when this one has read its weights, so that it takes no place from programs that read."""


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Wait for the end of the kernel before, and let the next one begin if it may at once. 0: kernels follow one another."""
    if OVERLAP == 1:
        tl.extra.cuda.gdc_launch_dependents()
    if OVERLAP > 0:
        tl.extra.cuda.gdc_wait()


@triton.jit
def allow_next(OVERLAP: tl.constexpr):
    """Let the next kernel begin, unless it may already."""
    if OVERLAP == 2:
        tl.extra.cuda.gdc_launch_dependents()


@cache
def _overlaps(device: torch.device) -> bool:
    """Return whether kernels may begin before the one before has ended (programmatic dependent launch)."""
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device)[0] >= 9
        and isinstance(allow_next, triton.JITFunction)
        and hasattr(tl.extra.cuda, "gdc_wait")
    )


def launched(device: torch.device, overlap: int, warps: int = 4) -> dict[str, Any]:
    """Return the options of a launch."""
    overlaps = {"OVERLAP": overlap, "launch_pdl": True} if _overlaps(device) else {"OVERLAP": 0}
    return {"num_warps": warps, **overlaps}
