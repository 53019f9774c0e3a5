"""Reads and validates a checkpoint's ``config.json``: the fields that our networks need, from plain JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen

from omni_core.api import ConfigError
from omni_torch.api import Section, read_json

MODEL_TYPE = "fish_qwen3_omni"


@frozen
class DecoderConfig:
    """A decoder of Llama's architecture: the slow one over frames, or the fast one over the codes of a frame."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_base: float
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool


@frozen
class FishConfig:
    """A checkpoint's config.

    Attributes:
        slow: predicts the semantic token of each frame.
        fast: predicts the codes of a frame, one after another.
        vocab_size: of the slow decoder: text, markers and semantic tokens.
        tied: whether its head is its embedding.
        max_positions: the slow decoder's context.
        codebook_size: values that a code can have, in every codebook of the decoders.
        codebooks: codes per frame, the semantic one first.
        semantic_begin, semantic_end: first and last id of the semantic tokens (inclusive).
        im_end: the id that ends a turn.
    """

    slow: DecoderConfig
    fast: DecoderConfig
    vocab_size: int
    tied: bool
    max_positions: int
    codebook_size: int
    codebooks: int
    semantic_begin: int
    semantic_end: int
    im_end: int


def read_config(folder: str | Path) -> FishConfig:
    """Read ``config.json`` of a checkpoint folder.

    Raises:
        ConfigError: the file is missing or unreadable, is another model's, or a field is missing or out of range; the message
            names file, field, value and what is allowed.
    """
    return parse_config(read_json(Path(folder) / "config.json"))


def parse_config(raw: dict[str, Any]) -> FishConfig:
    """Read the config from a JSON document; see :func:`read_config`."""
    root = Section(raw, "config.json", "Fish Audio S2")
    if root["model_type"] != MODEL_TYPE:
        raise root.fail("model_type", repr(MODEL_TYPE))
    text, audio = root.section("text_config"), root.section("audio_decoder_config")
    slow = _decoder(text)
    vocab_size = text.integer("vocab_size", 1, 2**24)
    config = FishConfig(
        slow=slow,
        fast=_decoder(audio, slow),
        vocab_size=vocab_size,
        tied=text.flag("tie_word_embeddings", True),
        max_positions=text.integer("max_seq_len", 1, 2**24, 32768),
        codebook_size=audio.integer("vocab_size", 1, 2**20),
        codebooks=audio.integer("num_codebooks", 2, 256),
        semantic_begin=root.integer("semantic_start_token_id", 0, vocab_size - 1),
        semantic_end=root.integer("semantic_end_token_id", 0, vocab_size - 1),
        im_end=root.integer("eos_token_id", 0, vocab_size - 1),
    )
    count = config.semantic_end - config.semantic_begin + 1
    if count != config.codebook_size:
        raise ConfigError(
            f"config.json: {count} semantic tokens (semantic_start_token_id to semantic_end_token_id) for "
            f"{config.codebook_size} codes (audio_decoder_config.vocab_size)"
        )
    return config


def _decoder(section: Section, slow: DecoderConfig | None = None) -> DecoderConfig:
    """Read a decoder's dimensions. Fields that the fast decoder's section lacks have the slow one's values."""

    def integer(name: str, own: str, high: int, default: int | None = None) -> int:
        return section.integer(name, 1, high, default if slow is None else getattr(slow, own))

    def flag(name: str, own: str) -> bool:
        return section.flag(name, False if slow is None else getattr(slow, own))

    heads, dim = integer("n_head", "heads", 1024), integer("dim", "dim", 2**17)
    kv_heads = integer("n_local_heads", "kv_heads", heads, heads)
    if heads % kv_heads:
        raise section.fail("n_local_heads", f"a divisor of n_head, which is {heads}")
    head_dim = integer("head_dim", "head_dim", 1024, max(1, dim // heads))
    if head_dim % 2:
        raise section.fail("head_dim", "an even number")
    return DecoderConfig(
        dim=dim,
        layers=section.integer("n_layer", 1, 1024),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=integer("intermediate_size", "intermediate_size", 2**20),
        # Both decoders use the slow one's base and epsilon.
        norm_eps=section.number("norm_eps", 1e-12, 1.0, 1e-5) if slow is None else slow.norm_eps,
        rope_base=section.number("rope_base", 1.0, 1e15, 10000.0) if slow is None else slow.rope_base,
        qkv_bias=flag("attention_qkv_bias", "qkv_bias"),
        output_bias=flag("attention_o_bias", "output_bias"),
        qk_norm=flag("attention_qk_norm", "qk_norm"),
    )
