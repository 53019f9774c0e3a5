"""Attention computed plainly, and a stand-in of FlashInfer's wrappers as their documentation describes them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from omni_core.model_runner import KVLayout
from omni_torch.engine.attention import AttentionBackend, SdpaBackend
from omni_torch.engine.attention.flashinfer import FlashInferBackend
from omni_torch.engine.kv_cache import KVCache

HEADS, KV_HEADS, WIDTH, BLOCK = 4, 2, 16, 8
LAYOUT = KVLayout(1, KV_HEADS, WIDTH, torch.float32)


def paged_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """Reference attention of the last ``len(query)`` positions of one sequence over its slots."""
    k, v = (
        each.reshape(-1, *each.shape[-2:])[slots].repeat_interleave(HEADS // KV_HEADS, 1) for each in (keys, values)
    )
    scores = torch.einsum("qhd,khd->hqk", query, k) * (WIDTH**-0.5 if scale is None else scale)
    seen = torch.arange(len(slots)) <= torch.arange(len(slots) - len(query), len(slots)).unsqueeze(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)


class StandInWrapper:
    """FlashInfer's paged wrappers, as their documentation describes ``plan`` and ``run``; for CUDA graphs, in
    preallocated tensors.
    """

    def __init__(
        self,
        workspace: torch.Tensor,
        layout: str,
        use_tensor_cores: bool = False,
        use_cuda_graph: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
    ) -> None:
        assert workspace.dtype == torch.uint8
        assert layout == "NHD"
        self.decode = use_tensor_cores
        buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        assert all((each is not None) == use_cuda_graph for each in buffers)
        self.buffers: Any = buffers if use_cuda_graph else None

    def plan(
        self, *tables: Any, causal: bool = False, sm_scale: float | None, q_data_type: Any, kv_data_type: Any
    ) -> None:
        *tensors, heads, kv_heads, width, page_size = tables
        assert (heads, kv_heads, width, page_size) == (HEADS, KV_HEADS, WIDTH, BLOCK)
        assert all(each.dtype == torch.int32 for each in tensors)
        assert causal != self.decode
        if self.buffers is not None:
            assert [len(tensors[0]), len(tensors[2])] == [len(self.buffers[0]), len(self.buffers[2])], "fixed"
            for buffer, given in zip(self.buffers, tensors, strict=True):
                buffer[: len(given)] = given
            tensors = self.buffers
        if self.decode:
            tensors = [torch.arange(len(tensors[2]) + 1), *tensors]
        self.tables, self.scale = tensors, sm_scale

    def run(self, query: torch.Tensor, paged: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        rows, offsets, pages, last = [each.tolist() for each in self.tables]
        parts = []
        for index in range(len(last)):
            table = torch.tensor(pages[offsets[index] : offsets[index + 1]])
            slots = (table.unsqueeze(1) * BLOCK + torch.arange(BLOCK)).reshape(-1)
            slots = slots[: (len(table) - 1) * BLOCK + last[index]]
            parts.append(paged_attention(query[rows[index] : rows[index + 1]], *paged, slots, self.scale))
        return torch.cat(parts)


def made(name: str, cache: KVCache, monkeypatch: pytest.MonkeyPatch) -> AttentionBackend:
    if name == "flashinfer":
        module = ModuleType("flashinfer")
        module.BatchDecodeWithPagedKVCacheWrapper = StandInWrapper  # type: ignore[attr-defined]
        module.BatchPrefillWithPagedKVCacheWrapper = StandInWrapper  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "flashinfer", module)
        return FlashInferBackend(cache)
    return SdpaBackend(cache)
