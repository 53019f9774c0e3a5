"""A causal transformer with a sliding window over codec frames, as the decoders of Qwen3-Omni's and Qwen3-TTS's codecs have.

The names of the parameters are those of the released checkpoints, with query, key and value joined. For inference only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from attrs import define, field, frozen
from torch import nn

from omni_torch.operations.norm import RMSNorm
from omni_torch.operations.shared import rotary


class FrameConfig(Protocol):
    """The dimensions of the transformer. ``window``: frames that a frame attends to, itself included."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def attention_bias(self) -> bool: ...
    @property
    def window(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def rope_theta(self) -> float: ...


@define(eq=False)
class FrameWindow:
    """The keys and values of the frames that the next ones attend to, ``[kv_heads, frames, head_dim]`` for each layer.

    Attributes:
        frames: how many frames have been transformed, those that have left the window included.
    """

    frames: int = 0
    keys: list[torch.Tensor] = field(factory=list)
    values: list[torch.Tensor] = field(factory=list)


@frozen(eq=False)
class Batch:
    """The next frames of several utterances, packed.

    Attributes:
        cos, sin: of each frame's rotary position, ``[frames, 1, head_dim]``.
        counts: frames of each utterance.
        windows: of each.
        masks: which frames, those of the window and then the new ones, each new frame of an utterance attends to.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    counts: list[int]
    windows: list[FrameWindow]
    masks: list[torch.Tensor]


class Attention(nn.Module):
    """Causal attention over the window."""

    def __init__(self, config: FrameConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, config.heads, config.kv_heads, config.head_dim
        self.window = config.window
        width, bias = (self.heads + 2 * self.kv_heads) * self.head_dim, config.attention_bias
        self.qkv_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=bias)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        projected = self.qkv_proj(x).unflatten(1, (-1, self.head_dim))
        turned, value = projected.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        query, key = rotary(turned, batch.cos, batch.sin).split([self.heads, self.kv_heads], dim=1)
        queries, keys, values = (each.transpose(0, 1).split(batch.counts, dim=1) for each in (query, key, value))
        each_utterance = zip(queries, keys, values, batch.windows, batch.masks, strict=True)
        mixed = [self._attend(*parts) for parts in each_utterance]
        return self.o_proj(torch.cat(mixed, dim=1).transpose(0, 1).flatten(1))

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: FrameWindow, mask: torch.Tensor
    ) -> torch.Tensor:
        """Attend with the frames of one utterance, ``[heads, frames, head_dim]``, and move its window."""
        if self.layer < len(window.keys):
            key = torch.cat([window.keys[self.layer], key], dim=1)
            value = torch.cat([window.values[self.layer], value], dim=1)
        else:
            window.keys.append(key)
            window.values.append(value)
        # Copies, so that the rows before the window are freed.
        kept = min(key.shape[1], self.window - 1)
        window.keys[self.layer] = key[:, key.shape[1] - kept :].clone()
        window.values[self.layer] = value[:, value.shape[1] - kept :].clone()
        return F.scaled_dot_product_attention(
            query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), mask, enable_gqa=self.heads != self.kv_heads
        )[0]


class LayerScale(nn.Module):
    """Multiplies each channel by a learned factor (Touvron et al., 2021)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class FrameLayer(nn.Module):
    """Attention and feed-forward, each behind a norm, scaled, and around a residual."""

    def __init__(self, config: FrameConfig, layer: int, mlp: nn.Module) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = mlp
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        mixed = self.self_attn(self.input_layernorm(x), batch)
        x, normed = self.post_attention_layernorm.add(x, self.self_attn_layer_scale(mixed))
        return x + self.mlp_layer_scale(self.mlp(normed))


class FrameTransformer(nn.Module):
    """The transformer.

    Args:
        mlp: makes the feed-forward of a layer, ``[n, hidden]`` to the same.
    """

    def __init__(self, config: FrameConfig, mlp: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([FrameLayer(config, layer, mlp()) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self._window, self._theta, self._head_dim = config.window, config.rope_theta, config.head_dim

    def forward(self, x: torch.Tensor, counts: list[int], windows: list[FrameWindow]) -> torch.Tensor:
        """Transform the next frames of several utterances, ``[frames, hidden]``, so many of each."""
        places = [
            torch.arange(window.frames, window.frames + count, device=x.device)
            for window, count in zip(windows, counts, strict=True)
        ]
        cos, sin = self._rotations(torch.cat(places), x.dtype)
        masks = [self._mask(place, window) for place, window in zip(places, windows, strict=True)]
        batch = Batch(cos, sin, counts, windows, masks)
        for layer in self.layers:
            x = layer(x, batch)
        for window, count in zip(windows, counts, strict=True):
            window.frames += count
        hidden: torch.Tensor = self.norm(x)
        return hidden

    def _rotations(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        steps = torch.arange(0, self._head_dim, 2, dtype=torch.float32, device=positions.device)
        angles = positions.float().unsqueeze(1) / self._theta ** (steps / self._head_dim)
        angles = torch.cat([angles, angles], dim=1).unsqueeze(1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def _mask(self, places: torch.Tensor, window: FrameWindow) -> torch.Tensor:
        """Return a mask of :class:`Batch`, ``[new, kept + new]``."""
        kept = min(window.frames, self._window - 1)
        seen = torch.arange(window.frames - kept, window.frames + len(places), device=places.device)
        back = places.unsqueeze(1) - seen
        return (back >= 0) & (back < self._window)
