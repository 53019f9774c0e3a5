"""Attention among neighbouring blocks of mel frames, by transformers' interface for attention functions.

A layer of the flow matching network lets a frame see its own block of frames, and in some layers the one before or after. Transformers'
network computes all pairs of frames and masks most of them; here those that are seen are computed, so time and memory are proportional
to the length of a speech.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

NAME = "omni_blocks"

NEIGHBOURS = torch.tensor([-1, 0, 1])
"""The blocks that a layer may see, relative to a frame's own; in the place of the distances of all pairs of frames. On the CPU, where
reading them waits for nothing."""


def block_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return ``[B, frames, heads, head_dim]``, and no weights.

    Args:
        module: an attention whose config has the ``block_size``.
        query, key, value: ``[B, heads, frames, head_dim]``.
        attention_mask: which of :data:`NEIGHBOURS` are seen, ``[3]`` bool.
    """
    batch, heads, frames, width = query.shape
    size = module.config.block_size
    before, _own, after = attention_mask.tolist()
    blocks = -(-frames // size)
    window, lead = size * (1 + before + after), size * before
    fill = blocks * size - frames

    def windows(x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (0, 0, lead, fill + size * after))
        return padded.unfold(2, window, size).permute(0, 2, 1, 4, 3).reshape(batch * blocks, heads, window, width)

    queries = F.pad(query, (0, 0, 0, fill)).view(batch, heads, blocks, size, width).transpose(1, 2)
    positions = torch.arange(blocks, device=query.device).unsqueeze(1) * size - lead
    positions = positions + torch.arange(window, device=query.device)
    seen = ((positions >= 0) & (positions < frames)).repeat(batch, 1).view(-1, 1, 1, window)
    mixed = F.scaled_dot_product_attention(queries.flatten(0, 1), windows(key), windows(value), attn_mask=seen)
    mixed = mixed.view(batch, blocks, heads, size, width).transpose(2, 3).reshape(batch, -1, heads, width)
    return mixed[:, :frames], None


AttentionInterface.register(NAME, block_attention)
