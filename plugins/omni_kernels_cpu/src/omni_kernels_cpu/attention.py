"""The kernel of ``paged_decode``."""

from __future__ import annotations

from ctypes import byref

import torch

from omni_kernels_cpu.library import AttentionStruct, library
from omni_kernels_cpu.rows import KINDS
from omni_torch import api as operations


def paged_decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    read: torch.Tensor,
    lengths: torch.Tensor,
    seen: torch.Tensor,
    scale: float | None,
) -> torch.Tensor:
    """See :func:`omni_torch.engine.attention.decode.paged_decode`."""
    given = (query, keys, values, read, lengths)
    if not all(each.is_contiguous() for each in given) or not query.dtype == keys.dtype == values.dtype:
        return operations.paged_decode.reference(query, keys, values, read, lengths, seen, scale)
    output = torch.empty_like(query)
    rows, heads, width = query.shape
    pointers = (each.data_ptr() for each in (*given, output))
    arguments = AttentionStruct(
        *pointers,
        rows,
        heads,
        keys.shape[1],
        width,
        read.shape[1],
        KINDS[query.dtype],
        width**-0.5 if scale is None else scale,
    )
    library().omni_cpu_attention(byref(arguments), torch.get_num_threads())
    return output
