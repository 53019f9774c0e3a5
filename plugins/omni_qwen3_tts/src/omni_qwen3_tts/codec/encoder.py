"""The codec's encoder, from 24 kHz sound to codes: Mimi's (Défossez et al., 2024), convolutions, a causal transformer, and codebooks.

A recording is encoded whole. The names of the parameters are those of the released checkpoint.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.api import ConfigError
from omni_qwen3_tts.checkpoint import sources
from omni_qwen3_tts.codec.config import CodecConfig, EncoderConfig
from omni_qwen3_tts.config import CODEC
from omni_qwen3_tts.layers import Rotary
from omni_torch.api import LayerScale, load_module, open_checkpoint, rotary

USAGE_EPS = 1e-5

LAST_STRIDE, LAST_KERNEL = 2, 4
"""Of the convolution behind the transformer, whose frames are those of the codes."""


class Conv(nn.Module):
    """A convolution that pads on the left, and on the right as far as the last stride needs: ``[B, in, T]`` to ``[B, out, T / stride]``."""

    def __init__(
        self,
        inner: int,
        outer: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
        mode: str = "constant",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inner, outer, kernel, stride, dilation=dilation, bias=bias)
        self._before, self._stride, self._mode = (kernel - 1) * dilation + 1 - stride, stride, mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(F.pad(x, (self._before, -x.shape[-1] % self._stride), mode=self._mode))


class Elu(nn.Module):
    """The activation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.elu(x)


class ResidualBlock(nn.Module):
    """Two convolutions, each behind an activation, around a residual."""

    def __init__(self, channels: int, inner: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Elu(), Conv(channels, inner, kernel, dilation=dilation), Elu(), Conv(inner, channels, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.block(x)
        return x + made


class Convolutions(nn.Module):
    """Samples to columns, ``[B, 1, n]`` to ``[B, hidden, n / rates]``."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.filters
        layers: list[nn.Module] = [Conv(1, width, config.kernel)]
        for rate in reversed(config.rates):
            for number in range(config.residual_layers):
                dilation = config.dilation_growth**number
                layers.append(ResidualBlock(width, width // config.compress, config.residual_kernel, dilation))
            layers += [Elu(), Conv(width, 2 * width, 2 * rate, stride=rate)]
            width *= 2
        self.layers = nn.ModuleList([*layers, Elu(), Conv(width, config.hidden_size, config.last_kernel)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Attention(nn.Module):
    """Causal attention over a whole recording, ``[n, hidden]``."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._width = config.heads, config.kv_heads, config.head_dim
        width, bias = (config.heads + 2 * config.kv_heads) * config.head_dim, config.attention_bias
        self.qkv_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=bias)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        projected = self.qkv_proj(x).unflatten(1, (-1, self._width))
        turned, value = projected.split([self._heads + self._kv_heads, self._kv_heads], dim=1)
        query, key = rotary(turned, cos, sin).split([self._heads, self._kv_heads], dim=1)
        query, key, value = (each.transpose(0, 1).unsqueeze(0) for each in (query, key, value))
        grouped = self._heads != self._kv_heads
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return self.o_proj(mixed[0].transpose(0, 1).flatten(1))


class FeedForward(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm, scaled, and around a residual."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.self_attn, self.mlp = Attention(config), FeedForward(width, config.intermediate_size)
        self.input_layernorm = nn.LayerNorm(width, eps=config.norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(width, eps=config.norm_eps)
        self.self_attn_layer_scale, self.mlp_layer_scale = LayerScale(width), LayerScale(width)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class Transformer(nn.Module):
    """The transformer over columns, ``[n, hidden]``."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self._rotary = Rotary(config.head_dim, config.rope_theta)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self._rotary(torch.arange(len(x), device=x.device), x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


class Codebook(nn.Module):
    """The entries of a codebook, as sums of what was assigned to each, and how much that was."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.embed_sum = nn.Parameter(torch.empty(size, width))

    @cached_property
    def entries(self) -> torch.Tensor:
        """The entries, ``[size, width]`` float32."""
        return (self.embed_sum / self.cluster_usage.clamp(min=USAGE_EPS)[:, None]).float()


class _Entry(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.codebook = Codebook(size, width)


class Quantizer(nn.Module):
    """Codebooks of which each names the nearest entry to what the ones before have left."""

    def __init__(self, config: EncoderConfig, count: int, size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Entry(size, config.codebook_dim) for _ in range(count)])
        self.input_proj = nn.Conv1d(config.hidden_size, config.codebook_dim, 1, bias=False)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Return codes of ``[1, hidden, n]``, ``[count, n]`` int64."""
        left, codes = self.input_proj(columns)[0].T, []
        layers: Any = self.layers
        for layer in layers:
            entries = layer.codebook.entries
            codes.append(torch.cdist(left[None].float(), entries[None])[0].argmin(-1))
            left = left - entries[codes[-1]].to(left.dtype)
        return torch.stack(codes)


class SplitQuantizer(nn.Module):
    """The first codebook apart from the others: both see the columns themselves."""

    def __init__(self, config: EncoderConfig, codebooks: int, size: int) -> None:
        super().__init__()
        self.semantic_residual_vector_quantizer = Quantizer(config, 1, size)
        self.acoustic_residual_vector_quantizer = Quantizer(config, codebooks - 1, size)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.semantic_residual_vector_quantizer(columns)
        return torch.cat([first, self.acoustic_residual_vector_quantizer(columns)])


class CodecEncoder(nn.Module):
    """Sound to codes; of the released codebooks, those that the talker knows."""

    def __init__(self, config: EncoderConfig, codebooks: int, size: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.encoder, self.encoder_transformer = Convolutions(config), Transformer(config)
        self.downsample = Conv(width, width, LAST_KERNEL, stride=LAST_STRIDE, bias=False, mode="replicate")
        self.quantizer = SplitQuantizer(config, codebooks, size)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Encode ``[n]`` samples to ``[frames, codebooks]`` int64; the last frame may end in silence."""
        columns = self.encoder_transformer(self.encoder(samples[None, None])[0].T).T
        codes: torch.Tensor = self.quantizer(self.downsample(columns.unsqueeze(0)))
        return codes.T


def load_encoder(model_path: str, config: CodecConfig, *, dtype: str = "float32", device: str = "cpu") -> CodecEncoder:
    """Load the encoder.

    Raises:
        ConfigError: the codec has none, or a tensor is missing or has a wrong shape.
    """
    if config.encoder is None:
        raise ConfigError(f"{CODEC}/config.json.encoder_config: missing; the voice of a recording needs it")
    with torch.device("meta"):
        network = CodecEncoder(config.encoder, config.codebooks, config.codebook_size)
    checkpoint, kind = open_checkpoint(f"{model_path}/{CODEC}"), getattr(torch, dtype)
    return load_module(network, checkpoint, partial(sources, "encoder."), dtype=kind, device=device)
