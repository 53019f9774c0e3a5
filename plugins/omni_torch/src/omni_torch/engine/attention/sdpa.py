"""Attention over the paged cache with PyTorch's scaled dot product: one kernel for decode rows, one per prompt chunk.

Decode rows of one step are padded to the longest and masked. On a CPU, many or long ones are computed one by one
instead, each in place. A request's result does not depend on the rest of the batch beyond floating-point noise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from omni_core.api import ARRequest, KVLayout
from omni_torch.engine.attention.base import AttentionBackend, StepAttention
from omni_torch.engine.attention.decode import paged_decode
from omni_torch.engine.attention.forms import FormedAttention
from omni_torch.engine.attention.static import DecodeTables, StaticAttention
from omni_torch.engine.kv_cache import KVCache

Slots = torch.Tensor | slice

MOST_GATHERED = 2048
"""The most positions, padding included, that are gathered for decode rows on a CPU. Above it, copies cost more than
calls (twice at 8,000).
"""


class StaticPagedAttention(StaticAttention):
    """Decodes that read ``width`` pages each and attend to as many positions as their lengths say."""

    def __init__(self, backend: AttentionBackend, tables: DecodeTables, rows: int, width: int) -> None:
        super().__init__(backend, tables, rows, width)
        self._column = torch.arange(width * self.cache.block_size, device=tables.pages.device)
        self._read: torch.Tensor | None = None

    def begin(self) -> None:
        self._read = None

    def _prepare(self) -> torch.Tensor:
        size = self.cache.block_size
        first = self.tables.pages[: self.rows, : self.width].long() * size
        slots = (first.unsqueeze(-1) + self._column[:size]).flatten(1)
        self._lengths = self.tables.lengths[: self.rows].long()
        self._seen = self._column < self._lengths.unsqueeze(1)
        return torch.where(self._seen, slots, slots[:, :1])  # as in PagedAttention

    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        if self._read is None:
            self._read = self._prepare()
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        return paged_decode(query, keys, values, self._read, self._lengths, self._seen, scale)


class SdpaBackend(AttentionBackend):
    """Works on every device, in every form."""

    name = "sdpa"
    static_decode = StaticPagedAttention

    @classmethod
    def probe(cls, device: torch.device, layout: KVLayout, block_size: int) -> str | None:
        return None

    def plan(self, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> StepAttention:
        if self.cache.forms or self.cache.memory:
            return FormedAttention(self.cache, requests, starts, lengths, PagedAttention)
        return PagedAttention(self.cache, requests, starts, lengths)


class PagedAttention(StepAttention):
    """The attention of one step's batch. Everything that does not depend on the layer is computed once, here.

    Args:
        crosses: it is the cross-attention of the step, to all positions of each request's memory.
    """

    def __init__(
        self, cache: KVCache, requests: list[ARRequest], starts: list[int], lengths: list[int], crosses: bool = False
    ) -> None:
        super().__init__(cache, requests, starts, lengths)
        device = cache.keys[0].device
        self._crosses = crosses
        self._chunks: list[tuple[int, int, Slots, torch.Tensor | None]] = []
        decode_rows, decode_slots = [], []
        row = longest = 0
        for request, start, length in zip(requests, starts, lengths, strict=True):
            begin, end = (0, request.memory) if crosses else (request.memory, start + length)
            read = cache.slots(request.request_id, begin, end)
            if length == 1:
                longest = max(longest, end - begin)
                decode_rows.append(row)
                decode_slots.append(read)
            else:
                mask = None if crosses else _chunk_mask(start - begin, length, device)
                self._chunks.append((row, length, read, mask))
            row += length
        self._decode_rows = torch.tensor(decode_rows, device=device) if decode_rows else None
        self._all_decode = not self._chunks
        gathered = device.type != "cpu" or len(decode_slots) * longest <= MOST_GATHERED
        self._alone = decode_slots if len(decode_slots) == 1 or not gathered else []
        if decode_slots and not self._alone:
            indices = [_as_index(slots) for slots in decode_slots]
            lengths_seen = torch.tensor([len(index) for index in indices])
            seen = torch.arange(int(lengths_seen.max())) < lengths_seen.unsqueeze(1)
            # Padding repeats the request's own first position: a masked weight is zero, and zero times another
            # request's NaN is NaN.
            first = torch.stack([index[0] for index in indices]).unsqueeze(1)
            padded = torch.nn.utils.rnn.pad_sequence(indices, batch_first=True)
            self._padded = torch.where(seen, padded, first).to(device)
            self._seen, self._lengths_seen = seen.to(device), lengths_seen.to(device)

    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        if self._all_decode:
            return self._decode(query, keys, values, scale)
        output = torch.empty_like(query)
        for row, length, slots, mask in self._chunks:
            output[row : row + length] = _chunk(
                query[row : row + length], _read(keys, slots), _read(values, slots), mask, scale, not self._crosses
            )
        if self._decode_rows is not None:
            output[self._decode_rows] = self._decode(query[self._decode_rows], keys, values, scale)
        return output

    def _decode(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Attend with one query row per request."""
        if not self._alone:
            return paged_decode(query, keys, values, self._padded, self._lengths_seen, self._seen, scale)
        rows = [_row(*each, keys, values, scale) for each in zip(query.split(1), self._alone, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows)


def _row(
    query: torch.Tensor, slots: Slots, keys: torch.Tensor, values: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """Attend with one decode row: ``[1, heads, head_dim]``. The query heads of a KV head become rows, so K and V are
    never repeated.
    """
    _, heads, width = query.shape
    kv_heads = keys.shape[1]
    grouped = query.view(1, kv_heads, heads // kv_heads, width)
    k, v = (_read(each, slots).unsqueeze(0).transpose(1, 2) for each in (keys, values))
    return F.scaled_dot_product_attention(grouped, k, v, scale=scale).reshape(1, heads, width)


def _read(cached: torch.Tensor, slots: Slots) -> torch.Tensor:
    return cached[slots] if isinstance(slots, slice) else cached.index_select(0, slots.to(cached.device))


def _as_index(slots: Slots) -> torch.Tensor:
    return torch.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots


def _chunk_mask(start: int, length: int, device: torch.device) -> torch.Tensor | None:
    """Return the mask ``[length, start + length]``: row i attends to positions up to ``start + i``. ``None`` means
    plain causal.
    """
    if start == 0:
        return None
    columns = torch.arange(start + length, device=device)
    return columns <= torch.arange(start, start + length, device=device).unsqueeze(1)


def _chunk(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
    causal: bool,
) -> torch.Tensor:
    """Attend with a run of one request's positions: ``[length, heads, head_dim]``."""
    q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (query, key, value))
    mixed = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal and mask is None, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return mixed[0].transpose(0, 1)
