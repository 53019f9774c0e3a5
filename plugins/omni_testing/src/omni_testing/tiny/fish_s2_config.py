"""Defines the dimensions of tiny checkpoints, and their config with every field of the released one."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from omni_fish_s2.codec.config import CodecConfig


@frozen
class Shape:
    """The dimensions that vary between tiny checkpoints. ``joined``: queries, keys and values are one tensor on disk."""

    codec: CodecConfig
    merges: int = 60
    dim: int = 64
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 96
    tied: bool = True
    qk_norm: bool = True
    bias: bool = False
    fast: tuple[int, int, int, int, int] | None = (
        None  # dim, heads, kv_heads, head_dim, intermediate; None: the slow one's
    )
    fast_layers: int = 2
    fast_says_norm: bool = True
    joined: bool = True
    im_end_gain: float = 1.5


_CODEC = CodecConfig(
    encoder_dim=4, encoder_layers=(0, 0, 0, 2), latent=64, decoder_dim=32, semantic_codebook=256,
    residual_codebook=64, codebook_dim=8, layers=2, intermediate=96, convnext=256,
)  # fmt: skip

SHAPES = {
    "a": Shape(_CODEC),
    "b": Shape(
        evolve(
            _CODEC, encoder_rates=(4, 2, 8, 8), decoder_rates=(8, 4, 8, 2), decoder_dim=48, residuals=3,
            semantic_codebook=192, residual_codebook=96, layers=3, codebook_dim=4,
        ),
        merges=100, dim=48, layers=4, heads=6, kv_heads=1, head_dim=12, tied=False, qk_norm=False, fast=(32, 4, 2, 8, 64),
        fast_says_norm=False, joined=False, im_end_gain=1.2,
    ),
    "c": Shape(
        evolve(_CODEC, encoder_dim=8, encoder_layers=(0, 0, 1, 1), latent=128, residuals=5,
               intermediate=128, convnext=512, layers=1),
        merges=20, dim=32, layers=2, heads=4, kv_heads=4, head_dim=8, bias=True, fast_layers=1, fast_says_norm=False,
        im_end_gain=1.2,
    ),
    "mid": Shape(
        CodecConfig(
            encoder_dim=16, latent=256, decoder_dim=384, layers=4, intermediate=768, convnext=1024
        ),
        merges=200, dim=512, layers=12, heads=8, kv_heads=2, head_dim=64, intermediate=1536, fast_layers=4, im_end_gain=0.0,
    ),
}  # fmt: skip
"""Three tiny shapes that differ in every dimension that a loader or an attention could get wrong, and one of about 90 M
parameters.
"""


def model_config(shape: Shape, ids: dict[str, int]) -> dict[str, Any]:
    """Return the whole ``config.json``."""
    codec = shape.codec
    slow = {
        "attention_o_bias": shape.bias,
        "attention_qk_norm": shape.qk_norm,
        "attention_qkv_bias": shape.bias,
        "dim": shape.dim,
        "dropout": 0.0,
        "head_dim": shape.head_dim,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_seq_len": 4096,
        "n_head": shape.heads,
        "n_layer": shape.layers,
        "n_local_heads": shape.kv_heads,
        "norm_eps": 1e-6,
        "rope_base": 1000000,
        "tie_word_embeddings": shape.tied,
        "use_gradient_checkpointing": False,
        "vocab_size": ids["vocabulary"] + 3,
    }
    dim, heads, kv_heads, head_dim, inner = shape.fast or (
        shape.dim,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.intermediate,
    )
    fast = {
        "dim": dim,
        "head_dim": head_dim,
        "intermediate_size": inner,
        "max_seq_len": codec.codebooks + 1,
        "n_head": heads,
        "n_layer": shape.fast_layers,
        "n_local_heads": kv_heads,
        "num_codebooks": codec.codebooks,
        "text_dim": shape.dim,
        "vocab_size": codec.semantic_codebook,
    }
    if shape.fast_says_norm:
        fast["attention_qk_norm"] = False
    return {
        "model_type": "fish_qwen3_omni",
        "dtype": "bfloat16",
        "pad_token_id": ids["<|pad|>"],
        "eos_token_id": ids["<|im_end|>"],
        "audio_pad_token_id": ids["<|audio_pad|>"],
        "semantic_start_token_id": ids["first semantic"],
        "semantic_end_token_id": ids["first semantic"] + codec.semantic_codebook - 1,
        "text_config": slow,
        "audio_decoder_config": fast,
    }
