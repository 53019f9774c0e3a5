"""The parts of a checkpoint's ``config.json`` that our networks need, read as plain JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen

from omni_core.errors import ConfigError
from omni_torch.checkpoints import Section, read_json

MODEL_TYPE = "fish_qwen3_omni"


@frozen
class DecoderConfig:
    """A decoder of Llama's kind: the slow one over frames, or the fast one over the codes of a frame."""

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
        slow: predicts the semantic token of each frame. fast: predicts the codes of a frame, one after another.
        vocab_size: of the slow decoder: text, markers and semantic tokens. tied: whether its head is its embedding.
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
        ConfigError: the file is missing or unreadable, is another model's, or lacks a field; the message names it.
    """
    return parse_config(read_json(Path(folder) / "config.json"))


def parse_config(raw: dict[str, Any]) -> FishConfig:
    """The same from a JSON document."""
    root = Section(raw, "config.json", "Fish Audio S2")
    if root["model_type"] != MODEL_TYPE:
        raise ConfigError(f"config.json.model_type: must be {MODEL_TYPE!r}, is {root['model_type']!r}")
    text, audio = root.section("text_config"), root.section("audio_decoder_config")
    slow = _decoder(text)
    config = FishConfig(
        slow=slow,
        fast=_decoder(audio, slow),
        vocab_size=text["vocab_size"],
        tied=text.get("tie_word_embeddings", True),
        max_positions=text.get("max_seq_len", 32768),
        codebook_size=audio["vocab_size"],
        codebooks=audio["num_codebooks"],
        semantic_begin=root["semantic_start_token_id"],
        semantic_end=root["semantic_end_token_id"],
        im_end=root["eos_token_id"],
    )
    count = config.semantic_end - config.semantic_begin + 1
    if count != config.codebook_size:
        raise ConfigError(
            f"config.json: {count} semantic tokens (semantic_start_token_id to semantic_end_token_id) for "
            f"{config.codebook_size} codes (audio_decoder_config.vocab_size)"
        )
    return config


def _decoder(section: Section, slow: DecoderConfig | None = None) -> DecoderConfig:
    """A decoder's dimensions; what the fast one does not say, it has from the slow one."""

    def value(name: str, own: str, default: Any = None) -> Any:
        if slow is not None:
            return section.get(name, getattr(slow, own))
        return section[name] if default is None else section.get(name, default)

    heads, dim = value("n_head", "heads"), value("dim", "dim")
    return DecoderConfig(
        dim=dim,
        layers=section["n_layer"],
        heads=heads,
        kv_heads=value("n_local_heads", "kv_heads", heads),
        head_dim=value("head_dim", "head_dim", dim // heads),
        intermediate_size=value("intermediate_size", "intermediate_size"),
        # Base and epsilon are the slow decoder's in both.
        norm_eps=section.get("norm_eps", 1e-5) if slow is None else slow.norm_eps,
        rope_base=float(section.get("rope_base", 10000)) if slow is None else slow.rope_base,
        qkv_bias=value("attention_qkv_bias", "qkv_bias", False),
        output_bias=value("attention_o_bias", "output_bias", False),
        qk_norm=value("attention_qk_norm", "qk_norm", False),
    )
