"""Attention of layers with a sliding window, a soft cap, sinks or cross-attention, beside plain ones, with PyTorch's operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
import torch.nn.functional as F
from attrs import frozen
from torch.nn.utils.rnn import pad_sequence

from omni_core.api import ARRequest, AttentionForm
from omni_torch.engine.attention.base import StepAttention
from omni_torch.engine.attention.decode import paged_decode
from omni_torch.engine.kv_cache import KVCache
from omni_torch.loop.packing import indices


@frozen(eq=False)
class _Chunk:
    """A run of one request's positions, and what it reads: ``seen`` is ``[length, len(read)]``."""

    row: int
    length: int
    read: torch.Tensor
    seen: torch.Tensor


@frozen(eq=False)
class _Decodes:
    """The decode rows: ``rows`` ``[m]``, and as :func:`paged_decode` has them ``read``, ``lengths`` and ``seen``."""

    rows: torch.Tensor
    read: torch.Tensor
    lengths: torch.Tensor
    seen: torch.Tensor


class FormedAttention(StepAttention):
    """The attention of a step whose layers differ; what layers of one window share is computed once.

    Args:
        plain: makes the attention of the plain layers, and cross-attention.
    """

    def __init__(
        self,
        cache: KVCache,
        requests: list[ARRequest],
        starts: list[int],
        lengths: list[int],
        plain: Callable[..., StepAttention],
    ) -> None:
        super().__init__(cache, requests, starts, lengths)
        self._make_plain = plain
        self._plans: dict[int | None, tuple[list[_Chunk], _Decodes | None]] = {}

    @cached_property
    def _plain(self) -> StepAttention:
        return self._make_plain(self.cache, *self._step)

    @cached_property
    def _crossing(self) -> StepAttention:
        return self._make_plain(self.cache, *self._step, crosses=True)

    def recall(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        return self._crossing.attend(layer, query, scale)

    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        form = self.cache.forms[layer] if self.cache.forms else None
        if form is None:
            return self._plain.attend(layer, query, scale)
        if form.window not in self._plans:
            self._plans[form.window] = self._plan(form.window)
        chunks, decodes = self._plans[form.window]
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        scale = query.shape[2] ** -0.5 if scale is None else scale
        output = torch.empty_like(query)
        for chunk in chunks:
            run = slice(chunk.row, chunk.row + chunk.length)
            k, v = (each.index_select(0, chunk.read).unsqueeze(0) for each in (keys, values))
            output[run] = _mixed(query[run].unsqueeze(0), k, v, chunk.seen.unsqueeze(0), scale, form)[0]
        if decodes is not None:
            rows = query if not chunks else query[decodes.rows]
            output[decodes.rows] = _decoded(rows, keys, values, decodes, scale, form)
        return output

    def _plan(self, window: int | None) -> tuple[list[_Chunk], _Decodes | None]:
        device = self.cache.keys[0].device
        chunks: list[_Chunk] = []
        rows: list[int] = []
        read: list[torch.Tensor] = []
        row = 0
        for request, start, length in zip(*self._step, strict=True):
            first = request.memory if window is None else max(request.memory, start - window + 1)
            blocks = request.prompt_blocks
            if blocks is not None:
                first = _begin(blocks, first, start, length)
            slots = _index(self.cache.slots(request.request_id, first, start + length))
            if length == 1 and (blocks is None or window is None or start >= len(blocks)):
                rows.append(row)
                read.append(slots)
            else:
                seen = _seen(first, start, length, window, device)
                if blocks is not None:
                    own, read_too = (blocks[begin : start + length].to(device) for begin in (start, first))
                    seen[: len(own), : len(read_too)] |= (own.unsqueeze(1) == read_too) & (read_too >= 0)
                chunks.append(_Chunk(row, length, slots.to(device), seen))
            row += length
        if not rows:
            return chunks, None
        lengths = indices([len(slots) for slots in read])
        padded = pad_sequence(read, batch_first=True)
        seen = torch.arange(padded.shape[1]) < lengths.unsqueeze(1)
        # Padding repeats a slot of the request: a masked weight is zero, and zero times another request's NaN is NaN.
        padded = torch.where(seen, padded, padded[:, :1])
        return chunks, _Decodes(*(each.to(device) for each in (indices(rows), padded, lengths, seen)))


def _index(slots: torch.Tensor | slice) -> torch.Tensor:
    return torch.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots


def _begin(blocks: torch.Tensor, first: int, start: int, length: int) -> int:
    """Return the first position that a chunk from ``start`` reads: ``first``, or before it that of one of its blocks."""
    own = blocks[start : start + length]
    before = torch.isin(blocks[:first], own[own >= 0]).nonzero()
    return int(before[0]) if len(before) else first


def _seen(first: int, start: int, length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Return the mask ``[length, start + length - first]`` of positions from ``start`` over those from ``first``."""
    columns = torch.arange(first, start + length, device=device)
    rows = torch.arange(start, start + length, device=device).unsqueeze(1)
    seen = columns <= rows
    return seen if window is None else seen & (columns > rows - window)


def _decoded(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: _Decodes, scale: float, form: AttentionForm
) -> torch.Tensor:
    """Attend with one row per request, ``[m, heads, head_dim]``."""
    if form.soft_cap is None and form.sinks is None:
        return paged_decode(query, keys, values, plan.read, plan.lengths, plan.seen, scale)
    slots = plan.read.flatten()
    k, v = (each.index_select(0, slots).view(*plan.read.shape, *each.shape[1:]) for each in (keys, values))
    return _mixed(query.unsqueeze(1), k, v, plan.seen.unsqueeze(1), scale, form)[:, 0]


def _mixed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor, scale: float, form: AttentionForm
) -> torch.Tensor:
    """Attend in a form: ``[b, n, heads, head_dim]`` with ``[b, m, kv_heads, head_dim]`` where ``seen`` ``[b, n, m]``."""
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    if form.soft_cap is None and form.sinks is None:
        mixed = F.scaled_dot_product_attention(
            q, k, v, seen.unsqueeze(1), scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return mixed.transpose(1, 2)
    batch, heads, rows, width = q.shape
    kv_heads = k.shape[1]
    # The query heads of a KV head become rows, so K and V are never repeated.
    scores = (q.reshape(batch, kv_heads, -1, width) @ k.transpose(2, 3)).view(batch, heads, rows, -1).float() * scale
    if form.soft_cap is not None:
        scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
    scores = scores.masked_fill(~seen.unsqueeze(1), -torch.inf)
    if form.sinks is not None:
        sinks = form.sinks.float().view(1, heads, 1, 1).expand(batch, heads, rows, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : key.shape[1]].to(v.dtype)
    mixed = weights.reshape(batch, kv_heads, heads // kv_heads * rows, -1) @ v
    return mixed.view(batch, heads, rows, width).transpose(1, 2)
