"""The network of the vision encoder: a transformer over the patches of images and videos, each frame for itself.

Positions enter twice: as a learned table, interpolated to the size of the picture, and as rotary positions of rows and columns.
The names of the parameters are those of the released checkpoint. For inference only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from omni_qwen3.encoder_config import VisionConfig
from omni_qwen3.layers import activation
from omni_qwen3.segments import Segments, attend, segments_of
from omni_torch.api import Pack, embedding, pack, rotary

Grid = Sequence[int]
"""The size of an image or a video in patches: time, height, width."""

NORM_EPS = 1e-6


class PatchEmbedding(nn.Module):
    """A convolution whose kernel is one patch, which is a product of the patch's values."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        size = (config.temporal, config.patch, config.patch)
        self.proj = nn.Conv3d(3, config.hidden_size, size, stride=size)
        self._packed: nn.Module | None = None

    def pack_weights(self, pack: Pack = pack) -> None:
        """Convert the kernel to the layout of this CPU's kernels if that is faster, and free the original."""
        self._packed = pack(self.proj.weight.flatten(1), self.proj.bias)
        if self._packed is not None:
            self.proj.weight.data = self.proj.weight.new_empty(0)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        if self._packed is not None:
            packed: torch.Tensor = self._packed(patches)
            return packed
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class Attention(nn.Module):
    """Attention in both directions with rotary positions, which are computed in float32."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, segments: Segments) -> torch.Tensor:
        projected = self.qkv(x).unflatten(1, (3 * self.heads, -1))
        turned, value = projected.split([2 * self.heads, self.heads], dim=1)
        query, key = rotary(turned.float(), cos, sin).to(x.dtype).chunk(2, dim=1)
        return self.proj(attend(query, key, value, segments))


class FeedForward(nn.Module):
    """Two layers with an activation between them."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear_fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = activation(config.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_fc2(self.activation(self.linear_fc1(x)))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.attn = Attention(config)
        self.mlp = FeedForward(config)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, segments: Segments) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), cos, sin, segments)
        return x + self.mlp(self.norm2(x))


class Merger(nn.Module):
    """Joins the patches of a window to one row of the thinker's width.

    Args:
        joins_first: the norm is over the joined patches (deepstack levels) instead of each patch (the last layer).
    """

    def __init__(self, config: VisionConfig, *, joins_first: bool) -> None:
        super().__init__()
        width = config.hidden_size * config.merge**2
        self.ln_q = nn.LayerNorm(width if joins_first else config.hidden_size, eps=NORM_EPS)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, config.output_size))
        self.width, self.joins_first = width, joins_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.ln_q(x.reshape(-1, self.width)) if self.joins_first else self.ln_q(x).reshape(-1, self.width)
        merged: torch.Tensor = self.mlp(rows)
        return merged


class VisionEncoder(nn.Module):
    """The vision encoder."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.patch_embed = PatchEmbedding(config)
        self.pos_embed = embedding(config.side**2, config.hidden_size)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.merger = Merger(config, joins_first=False)
        self.merger_list = nn.ModuleList([Merger(config, joins_first=True) for _ in config.deepstack])
        self._side, self._merge, self._deepstack = config.side, config.merge, config.deepstack
        self._theta, self._axis_dim = config.rope_theta, config.hidden_size // config.heads // 2

    def forward(self, patches: torch.Tensor, grids: Sequence[Grid]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Encode images and videos.

        Args:
            patches: ``[patches, values]`` of all of them, those of a merge window one after the other.
            grids: of each.

        Returns:
            The rows in the prompt, ``[patches / merge^2, output_size]``, and for each deepstack layer, in the order of layers, as many.
        """
        x = self.patch_embed(patches)
        x = x + torch.cat([self._positions(grid) for grid in grids]).to(x.dtype)
        cos, sin = self._rotations(grids, x.device)
        segments = segments_of(height * width for time, height, width in grids for _ in range(time))
        levels = []
        for index, block in enumerate(self.blocks):
            x = block(x, cos, sin, segments)
            if index in self._deepstack:
                levels.append(self.merger_list[self._deepstack.index(index)](x))
        return self.merger(x), levels

    def _positions(self, grid: Grid) -> torch.Tensor:
        """Return the table of positions, interpolated to a picture's size, for each of its patches: ``[patches, hidden]`` float32.

        The corners of the table are those of the picture; the interpolation is linear, in rows and then in columns.
        """
        time, height, width = grid
        table = self.pos_embed.weight.float().unflatten(0, (self._side, self._side))
        rows = _interpolate(table, height).transpose(0, 1)
        cells = _interpolate(rows, width).transpose(0, 1)
        return self._by_windows(cells).repeat(time, 1)

    def _rotations(self, grids: Sequence[Grid], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, ``[patches, 1, head_dim]`` float32: a quarter of the width for the row, then for the column."""
        steps = torch.arange(0, self._axis_dim, 2, dtype=torch.float32, device=device)
        frequencies = 1.0 / self._theta ** (steps / self._axis_dim)
        angles = []
        for time, height, width in grids:
            places = [torch.arange(size, dtype=torch.float32, device=device) for size in (height, width)]
            row, column = torch.meshgrid(*places, indexing="ij")
            cells = torch.stack([row, column], dim=-1).unsqueeze(-1) * frequencies
            angles.append(self._by_windows(cells.flatten(2)).repeat(time, 2))
        joined = torch.cat(angles).unsqueeze(1)
        return joined.cos(), joined.sin()

    def _by_windows(self, cells: torch.Tensor) -> torch.Tensor:
        """Order the cells of a picture, ``[height, width, n]``, like its patches, ``[height * width, n]``."""
        height, width, _ = cells.shape
        merge = self._merge
        return cells.reshape(height // merge, merge, width // merge, merge, -1).transpose(1, 2).flatten(0, 3)


def _interpolate(table: torch.Tensor, size: int) -> torch.Tensor:
    """Return ``[size, ...]``: the first dimension of a table, stretched to ``size`` points from its first to its last row."""
    last = len(table) - 1
    places = torch.arange(size, dtype=torch.float32, device=table.device) * last / max(size - 1, 1)
    before = places.long().clamp(max=last)
    after = (before + 1).clamp(max=last)
    share = (places - before).reshape(-1, *[1] * (table.dim() - 1))
    return torch.lerp(table[before], table[after], share)
