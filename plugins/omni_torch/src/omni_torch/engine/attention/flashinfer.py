"""Attention by FlashInfer's kernels for paged caches. Our cache is its ``NHD`` layout, page by page."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from omni_core.api import ARRequest, KVLayout
from omni_torch.engine.attention.base import AttentionBackend, PageTables, StepAttention
from omni_torch.engine.attention.static import DecodeTables, StaticAttention
from omni_torch.engine.kv_cache import KVCache

WORKSPACE_BYTES = 128 * 2**20
"""Workspace size for split results that FlashInfer's documentation recommends."""

HEAD_DIMS = (64, 128, 256)
"""The head sizes for which its kernels are built."""


class _Decode(StaticAttention):
    """A wrapper with tables at fixed addresses; ``plan`` fills them from the host's, before each replay.

    The first call, which is never recorded, makes the first plan, because it knows the number of query heads and the
    scale.
    """

    any_width = True

    def __init__(self, backend: AttentionBackend, tables: DecodeTables, rows: int, width: int) -> None:
        super().__init__(backend, tables, rows, width)
        import flashinfer

        assert isinstance(backend, FlashInferBackend)
        offsets, pages, last = (
            torch.zeros(size, dtype=torch.int32, device=tables.pages.device) for size in (rows + 1, rows * width, rows)
        )
        self._wrapper: Any = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            backend.workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=offsets,
            paged_kv_indices_buffer=pages,
            paged_kv_last_page_len_buffer=last,
        )
        self._planned: tuple[int, float | None, torch.dtype] | None = None

    def refill(self) -> None:
        if self._planned is not None:
            self._plan(*self._planned)

    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        shape = (query.shape[1], scale, query.dtype)
        if self._planned is None:
            self._plan(*shape)
        if self._planned != shape:
            raise ValueError(f"one plan serves all layers of a graph, but they differ: {self._planned} and {shape}")
        paged = (-1, self.cache.block_size, *keys.shape[1:])
        output: torch.Tensor = self._wrapper.run(query, (keys.view(paged), values.view(paged)))
        return output

    def _plan(self, heads: int, scale: float | None, dtype: torch.dtype) -> None:
        keys, size = self.cache.keys[0], self.cache.block_size
        lengths = self.tables.host_lengths[: self.rows]
        counts = (lengths + size - 1) // size
        listed = torch.arange(self.width) < counts.unsqueeze(1)
        self._wrapper.plan(
            torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0)),
            self.tables.host_pages[: self.rows, : self.width][listed],
            (lengths - 1) % size + 1,
            heads,
            *keys.shape[1:],
            size,
            q_data_type=dtype,
            kv_data_type=keys.dtype,
            sm_scale=scale,
        )
        self._planned = heads, scale, dtype


class FlashInferBackend(AttentionBackend):
    """Has one wrapper for steps of decodes and one for steps with prompts."""

    name = "flashinfer"
    static_decode = _Decode

    def __init__(self, cache: KVCache) -> None:
        super().__init__(cache)
        import flashinfer

        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=cache.keys[0].device)
        self.decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD", use_tensor_cores=True)
        self.mixed = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NHD")

    @classmethod
    def probe(cls, device: torch.device, layout: KVLayout, block_size: int) -> str | None:
        if device.type != "cuda":
            return "it needs an NVIDIA GPU"
        if find_spec("flashinfer") is None:
            return "flashinfer is not installed (pip install flashinfer-python)"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "it needs compute capability 8.0 or higher"
        if layout.dtype not in (torch.float16, torch.bfloat16):
            return f"it computes in float16 or bfloat16, the cache is {layout.dtype}"
        if layout.form_names:
            return f"it attends plainly, the model has {' and '.join(layout.form_names)}"
        if layout.head_dim not in HEAD_DIMS:
            return f"its kernels have head sizes {', '.join(map(str, HEAD_DIMS))}, the model has {layout.head_dim}"
        return None

    def plan(self, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> StepAttention:
        return _Step(self, requests, starts, lengths)


class _Step(StepAttention):
    """Planned at the first layer's call, which knows the number of query heads and the scale; the others reuse the plan."""

    def __init__(
        self, backend: FlashInferBackend, requests: list[ARRequest], starts: list[int], lengths: list[int]
    ) -> None:
        super().__init__(backend.cache, requests, starts, lengths)
        self._tables = PageTables(backend.cache, requests, starts, lengths)
        self._decodes = max(lengths) == 1
        self._wrapper: Any = backend.decode if self._decodes else backend.mixed
        self._planned: tuple[int, float | None] | None = None

    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        if self._planned != (query.shape[1], scale):
            self._plan(query, keys, scale)
        paged = (-1, self.cache.block_size, *keys.shape[1:])
        output: torch.Tensor = self._wrapper.run(query, (keys.view(paged), values.view(paged)))
        return output

    def _plan(self, query: torch.Tensor, keys: torch.Tensor, scale: float | None) -> None:
        tables = self._tables
        shape = (query.shape[1], *keys.shape[1:], self.cache.block_size)
        pages = (tables.page_offsets, tables.pages, tables.last_page)
        types = {"q_data_type": query.dtype, "kv_data_type": keys.dtype, "sm_scale": scale}
        if self._decodes:
            self._wrapper.plan(*pages, *shape, **types)
        else:
            # Causal from the end: a chunk's last row attends to every key.
            self._wrapper.plan(tables.query_offsets, *pages, *shape, causal=True, **types)
        self._planned = (query.shape[1], scale)
