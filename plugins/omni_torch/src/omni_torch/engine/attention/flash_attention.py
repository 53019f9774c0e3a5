"""Attention by the FlashAttention library, whose kernels read pages of 256 positions."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from omni_core.api import ARRequest, KVLayout
from omni_torch.engine.attention.base import AttentionBackend, PageTables, StepAttention
from omni_torch.engine.attention.static import DecodeTables, StaticAttention
from omni_torch.engine.kv_cache import KVCache

PAGE = 256
"""The library's paged kernels load keys in steps of 256, so the block size must be a multiple of that."""


class _Decode(StaticAttention):
    """The library function that :class:`_Step` calls. The one for decodes reads the longest length from the device
    (since 2026-07).
    """

    def __init__(self, backend: AttentionBackend, tables: DecodeTables, rows: int, width: int) -> None:
        super().__init__(backend, tables, rows, width)
        self._query_offsets = torch.arange(rows + 1, dtype=torch.int32, device=tables.pages.device)

    def begin(self) -> None:
        lengths = self.tables.lengths[: self.rows]
        self._key_offsets = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))

    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        from flash_attn import flash_attn_varlen_func

        keys, values = self.cache.keys[layer], self.cache.values[layer]
        paged = (-1, self.cache.block_size, *keys.shape[1:])
        output: torch.Tensor = flash_attn_varlen_func(
            query,
            keys.view(paged),
            values.view(paged),
            cu_seqlens_q=self._query_offsets,
            cu_seqlens_k=self._key_offsets,
            max_seqlen_q=1,
            max_seqlen_k=self.width * self.cache.block_size,
            softmax_scale=scale,
            causal=True,
            block_table=self.tables.pages[: self.rows, : self.width],
        )
        return output


class FlashAttentionBackend(AttentionBackend):
    """Computes a whole step, decodes and chunks together, in one call."""

    name = "flash-attention"
    static_decode = _Decode

    @classmethod
    def probe(cls, device: torch.device, layout: KVLayout, block_size: int) -> str | None:
        if device.type != "cuda":
            return "it needs an NVIDIA GPU"
        if find_spec("flash_attn") is None:
            return "flash_attn is not installed (pip install flash-attn)"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "it needs compute capability 8.0 or higher"
        if layout.dtype not in (torch.float16, torch.bfloat16):
            return f"it computes in float16 or bfloat16, the cache is {layout.dtype}"
        if layout.head_dim > PAGE or layout.head_dim % 8:
            return f"head sizes are multiples of 8 up to 256, the model has {layout.head_dim}"
        if block_size % PAGE:
            return f"block_size must be a multiple of {PAGE} for it, is {block_size}"
        return None

    def plan(self, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> StepAttention:
        return _Step(self.cache, requests, starts, lengths)


class _Step(StepAttention):
    def __init__(self, cache: KVCache, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> None:
        super().__init__(cache, requests, starts, lengths)
        tables = PageTables(cache, requests, starts, lengths)
        self._options = {
            "cu_seqlens_q": tables.query_offsets,
            "cu_seqlens_k": torch.nn.functional.pad(tables.lengths.cumsum(0, dtype=torch.int32), (1, 0)),
            "max_seqlen_q": tables.longest_query,
            "max_seqlen_k": tables.longest,
            "block_table": tables.padded(),
            "causal": True,
        }

    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        from flash_attn import flash_attn_varlen_func

        keys, values = self.cache.keys[layer], self.cache.values[layer]
        paged = (-1, self.cache.block_size, *keys.shape[1:])
        output: torch.Tensor = flash_attn_varlen_func(
            query, keys.view(paged), values.view(paged), softmax_scale=scale, **self._options
        )
        return output
