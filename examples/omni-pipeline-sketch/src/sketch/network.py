"""The two networks. The drawer's layers attend to the reader's keys and values of the same layer, and to their own (as in BAGEL:
Deng et al., 2025, arXiv:2505.14683).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import nn

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(layer, query, key, value)``, ``[..., heads, head_dim]`` each, to what is mixed, shaped as the query."""

BOS, EOS, VOCABULARY = 256, 257, 258
"""Ids below 256 are bytes."""

EPS = 1e-6


@frozen
class Dimensions:
    """The sizes of both networks. ``patch``: pixels of a position; ``read_positions``: positions of an image that is read."""

    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    layers: int = 2
    patch: int = 4
    read_positions: int = 16

    @property
    def channels(self) -> int:
        """Values of a position: its pixels."""
        return 3 * self.patch * self.patch


class Layer(nn.Module):
    """Attention and a feed-forward, each behind a norm. ``heads`` and ``kv_heads`` may be those of one rank."""

    def __init__(self, dims: Dimensions, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.dims, self.heads, self.kv_heads = dims, heads, kv_heads
        self.norm, self.mlp_norm = nn.Parameter(torch.ones(dims.hidden)), nn.Parameter(torch.ones(dims.hidden))
        self.q = nn.Linear(dims.hidden, heads * dims.head_dim, bias=False)
        self.k = nn.Linear(dims.hidden, kv_heads * dims.head_dim, bias=False)
        self.v = nn.Linear(dims.hidden, kv_heads * dims.head_dim, bias=False)
        self.o = nn.Linear(heads * dims.head_dim, dims.hidden, bias=False)
        self.up = nn.Linear(dims.hidden, 2 * dims.hidden, bias=False)
        self.down = nn.Linear(2 * dims.hidden, dims.hidden, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
        reduce: Callable[[torch.Tensor], torch.Tensor] = lambda partial: partial,
    ) -> torch.Tensor:
        """``[..., hidden]`` to the same. ``reduce`` sums partial results over ranks."""
        normed, width = F.rms_norm(x, (x.shape[-1],), self.norm, EPS), self.dims.head_dim
        query = self.q(normed).unflatten(-1, (self.heads, width))
        key, value = (each(normed).unflatten(-1, (self.kv_heads, width)) for each in (self.k, self.v))
        mixed = attend(rotated(query, rotation), rotated(key, rotation), value)
        x = x + reduce(self.o(mixed.flatten(-2)))
        return x + self.down(F.silu(self.up(F.rms_norm(x, (x.shape[-1],), self.mlp_norm, EPS))))


def rotation(positions: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of rotary positions ``[...]``, ``[..., 1, head_dim / 2]`` each."""
    frequencies = 10_000.0 ** (-torch.arange(0, head_dim, 2, device=positions.device) / head_dim)
    angles = (positions.float().unsqueeze(-1) * frequencies).unsqueeze(-2)
    return angles.cos(), angles.sin()


def rotated(x: torch.Tensor, by: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate the two halves of each head."""
    (cos, sin), (first, second) = by, x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def sinusoid(values: torch.Tensor, width: int) -> torch.Tensor:
    """``[...]`` to ``[..., width]``: cosines, then sines, of falling frequencies."""
    frequencies = torch.exp(-math.log(1000.0) * torch.arange(width // 2, device=values.device) / (width // 2))
    angles = values.float().unsqueeze(-1) * frequencies
    return torch.cat([angles.cos(), angles.sin()], -1)


class Reader(nn.Module):
    """Reads patches of an image and bytes of a text, causally, and writes bytes."""

    def __init__(self, dims: Dimensions, heads: int | None = None, kv_heads: int | None = None) -> None:
        super().__init__()
        self.dims = dims
        self.table = nn.Embedding(VOCABULARY, dims.hidden)
        self.see = nn.Linear(dims.channels, dims.hidden)
        self.layers = nn.ModuleList(
            Layer(dims, heads or dims.heads, kv_heads or dims.kv_heads) for _ in range(dims.layers)
        )
        self.norm = nn.Parameter(torch.ones(dims.hidden))
        self.head = nn.Linear(dims.hidden, VOCABULARY, bias=False)

    def run(self, x: torch.Tensor, positions: torch.Tensor, attend: Attend, reduce: Any) -> torch.Tensor:
        """``[n, hidden]`` to the final hidden states."""
        turned = rotation(positions, self.dims.head_dim)
        for number, layer in enumerate(self.layers):
            x = layer(x, turned, lambda q, k, v, number=number: attend(number, q, k, v), reduce)
        return F.rms_norm(x, (x.shape[-1],), self.norm, EPS)


class Drawer(nn.Module):
    """Predicts the velocity of noisy patches, which attend to each other and to what the reader has read."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.dims = dims
        self.patch_in, self.patch_out = nn.Linear(dims.channels, dims.hidden), nn.Linear(dims.hidden, dims.channels)
        self.time, self.summary = nn.Linear(dims.hidden, dims.hidden), nn.Linear(dims.hidden, dims.hidden)
        self.layers = nn.ModuleList(Layer(dims, dims.heads, dims.kv_heads) for _ in range(dims.layers))
        self.norm = nn.Parameter(torch.ones(dims.hidden))

    def forward(
        self,
        samples: torch.Tensor,
        times: torch.Tensor,
        past: list[tuple[torch.Tensor, torch.Tensor]],
        hidden: torch.Tensor,
        lengths: torch.Tensor,
        grid: tuple[int, int],
    ) -> torch.Tensor:
        """Run the network.

        Args:
            samples: ``[n, height * width, channels]`` of a ``grid`` (height, width).
            times: ``[n]`` in [0, 1].
            past: the reader's keys and values of each layer, ``[n, longest, kv_heads, head_dim]``.
            hidden: its last hidden state, ``[n, hidden]``.
            lengths: ``[n]``, the positions of ``past`` that count; also the rotary position of what is drawn.
        """
        places, positions, longest = self._places(grid, samples.device), samples.shape[1], past[0][0].shape[1]
        x = self.patch_in(samples) + places
        x = x + (self.time(sinusoid(1000 * times, self.dims.hidden)) + self.summary(hidden)).unsqueeze(1)
        turned = rotation(lengths.unsqueeze(1).expand(-1, positions), self.dims.head_dim)
        mask = None
        if bool((lengths < longest).any()):
            columns = torch.arange(longest + positions, device=samples.device)
            mask = ((columns < lengths[:, None]) | (columns >= longest))[:, None, None, :]
        for layer, (keys, values) in zip(self.layers, past, strict=True):

            def attend(
                query: torch.Tensor,
                key: torch.Tensor,
                value: torch.Tensor,
                seen: tuple[torch.Tensor, torch.Tensor] = (keys, values),
            ) -> torch.Tensor:
                all_keys, all_values = (
                    torch.cat(pair, 1).transpose(1, 2) for pair in zip(seen, (key, value), strict=True)
                )
                mixed = F.scaled_dot_product_attention(
                    query.transpose(1, 2), all_keys, all_values, mask, enable_gqa=True
                )
                return mixed.transpose(1, 2)

            x = layer(x, turned, attend)
        return self.patch_out(F.rms_norm(x, (x.shape[-1],), self.norm, EPS))

    def _places(self, grid: tuple[int, int], device: torch.device) -> torch.Tensor:
        """Return ``[height * width, hidden]``: the row of each position, then its column."""
        rows, columns = torch.meshgrid(*(torch.arange(size, device=device) for size in grid), indexing="ij")
        half = self.dims.hidden // 2
        return torch.cat([sinusoid(rows.flatten(), half), sinusoid(columns.flatten(), half)], -1)


def patches(pixels: torch.Tensor, patch: int) -> torch.Tensor:
    """``[height, width, 3]`` to ``[positions, channels]``: squares of ``patch`` pixels, row by row."""
    height, width, _ = pixels.shape
    squares = pixels.view(height // patch, patch, width // patch, patch, 3).permute(0, 2, 1, 3, 4)
    return squares.reshape(-1, 3 * patch * patch)


def unpatched(squares: torch.Tensor, grid: tuple[int, int], patch: int) -> torch.Tensor:
    """Undo :func:`patches`, of several images: ``[n, positions, channels]`` to ``[n, height, width, 3]``."""
    height, width = grid
    found = squares.view(-1, height, width, patch, patch, 3).permute(0, 1, 3, 2, 4, 5)
    return found.reshape(-1, height * patch, width * patch, 3)
