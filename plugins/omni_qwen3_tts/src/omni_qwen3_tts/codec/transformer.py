"""The causal transformer of the codec's decoder, over frames, with a sliding window."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from attrs import define, field, frozen
from torch import nn

from omni_qwen3_tts.codec.config import CodecConfig
from omni_qwen3_tts.layers import MLP, Rotary
from omni_torch.api import RMSNorm, rotary


@define(eq=False)
class Window:
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
    windows: list[Window]
    masks: list[torch.Tensor]


class Attention(nn.Module):
    """Causal attention over the window."""

    def __init__(self, config: CodecConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, config.heads, config.kv_heads, config.head_dim
        self.window = config.window
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, width, bias=config.attention_bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=config.attention_bias)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        projected = self.qkv_proj(x).unflatten(1, (-1, self.head_dim))
        turned, value = projected.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        query, key = rotary(turned, batch.cos, batch.sin).split([self.heads, self.kv_heads], dim=1)
        queries, keys, values = (each.transpose(0, 1).split(batch.counts, dim=1) for each in (query, key, value))
        parts = zip(queries, keys, values, batch.windows, batch.masks, strict=True)
        mixed = torch.cat([self._attend(*each) for each in parts], dim=1)
        return self.o_proj(mixed.transpose(0, 1).flatten(1))

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: Window, mask: torch.Tensor
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
        grouped = self.heads != self.kv_heads
        return F.scaled_dot_product_attention(query[None], key[None], value[None], mask, enable_gqa=grouped)[0]


class Scale(nn.Module):
    """Multiplies each channel by a learned factor (Touvron et al., 2021)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm, scaled, and around a residual."""

    def __init__(self, config: CodecConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn_layer_scale = Scale(config.hidden_size)
        self.mlp_layer_scale = Scale(config.hidden_size)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        mixed = self.self_attn(self.input_layernorm(x), batch)
        x, normed = self.post_attention_layernorm.add(x, self.self_attn_layer_scale(mixed))
        return x + self.mlp_layer_scale(self.mlp(normed))


class FrameTransformer(nn.Module):
    """The transformer, between two projections: ``[frames, latent]`` to the same."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(config, layer) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.input_proj = nn.Linear(config.latent, config.hidden_size)
        self.output_proj = nn.Linear(config.hidden_size, config.latent)
        self._window, self._rotary = config.window, Rotary(config.head_dim, config.rope_theta)

    def forward(self, x: torch.Tensor, counts: list[int], windows: list[Window]) -> torch.Tensor:
        """Transform the next frames of several utterances, so many of each."""
        places = [
            torch.arange(window.frames, window.frames + count, device=x.device)
            for window, count in zip(windows, counts, strict=True)
        ]
        x = self.input_proj(x)
        cos, sin = self._rotary(torch.cat(places), x.dtype)
        masks = [self._mask(place, window) for place, window in zip(places, windows, strict=True)]
        batch = Batch(cos, sin, counts, windows, masks)
        for layer in self.layers:
            x = layer(x, batch)
        for window, count in zip(windows, counts, strict=True):
            window.frames += count
        made: torch.Tensor = self.output_proj(self.norm(x))
        return made

    def _mask(self, places: torch.Tensor, window: Window) -> torch.Tensor:
        """Return a mask of :class:`Batch`, ``[new, kept + new]``."""
        kept = min(window.frames, self._window - 1)
        seen = torch.arange(window.frames - kept, window.frames + len(places), device=places.device)
        back = places.unsqueeze(1) - seen
        return (back >= 0) & (back < self._window)
