"""The parts of a checkpoint's ``config.json`` that our own networks need, read as plain JSON.

Fields that the released config carries but transformers' classes do not declare (``head_dim``,
``shared_expert_intermediate_size``, ...) are read here like any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from omni_torch.checkpoints import Section, read_json

MODEL = "Qwen3-Omni"


@frozen
class DecoderConfig:
    """A Qwen3 decoder: the thinker's, the talker's, or the code predictor's (``experts == 0``: dense)."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, ...]
    max_positions: int
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_expert_size: int = 0
    norm_topk_prob: bool = True
    dense_layers: tuple[int, ...] = ()

    def is_sparse(self, layer: int) -> bool:
        return self.experts > 0 and layer not in self.dense_layers


@frozen
class TalkerConfig:
    """The talker beyond its decoder."""

    text: DecoderConfig
    predictor: DecoderConfig
    thinker_hidden_size: int
    code_groups: int
    accept_hidden_layer: int
    codec_pad: int
    codec_bos: int
    codec_eos: int
    codec_nothink: int
    codec_think_bos: int
    codec_think_eos: int
    speakers: dict[str, int]


@frozen
class QwenConfig:
    """A Qwen3-Omni checkpoint's config. ``raw`` is the whole JSON document, ``folder`` where the checkpoint lies."""

    raw: dict[str, Any]
    thinker: DecoderConfig
    talker: TalkerConfig
    image_token: int
    video_token: int
    audio_token: int
    im_start: int
    im_end: int
    user: int
    assistant: int
    tts_pad: int
    tts_bos: int
    tts_eos: int
    folder: str = ""


def read_config(folder: str | Path) -> QwenConfig:
    """Read ``config.json`` of a checkpoint folder.

    Raises:
        ConfigError: the file is missing or unreadable, or lacks a field; the message names it.
    """
    return evolve(parse_config(read_json(Path(folder) / "config.json")), folder=str(folder))


def parse_config(raw: dict[str, Any]) -> QwenConfig:
    """The same from a JSON document."""
    root = Section(raw, "config.json", MODEL)
    thinker, talker = root.section("thinker_config"), root.section("talker_config")
    return QwenConfig(
        raw=raw,
        thinker=_decoder(thinker.section("text_config")),
        talker=_talker(talker),
        image_token=thinker["image_token_id"],
        video_token=thinker["video_token_id"],
        audio_token=thinker["audio_token_id"],
        im_start=root["im_start_token_id"],
        im_end=root["im_end_token_id"],
        user=root["user_token_id"],
        assistant=root["assistant_token_id"],
        tts_pad=root["tts_pad_token_id"],
        tts_bos=root["tts_bos_token_id"],
        tts_eos=root["tts_eos_token_id"],
    )


def _talker(section: Section) -> TalkerConfig:
    return TalkerConfig(
        text=_decoder(section.section("text_config")),
        predictor=_decoder(section.section("code_predictor_config")),
        thinker_hidden_size=section["thinker_hidden_size"],
        code_groups=section["num_code_groups"],
        accept_hidden_layer=section["accept_hidden_layer"],
        codec_pad=section["codec_pad_id"],
        codec_bos=section["codec_bos_id"],
        codec_eos=section["codec_eos_token_id"],
        codec_nothink=section["codec_nothink_id"],
        codec_think_bos=section["codec_think_bos_id"],
        codec_think_eos=section["codec_think_eos_id"],
        speakers={name.lower(): number for name, number in section["speaker_id"].items()},
    )


def _decoder(section: Section) -> DecoderConfig:
    rope = Section({**section.get("rope_scaling", {}), **section.get("rope_parameters", {})}, "rope_parameters", MODEL)
    heads = section["num_attention_heads"]
    experts = section.get("num_experts", section.get("num_local_experts", 0))
    layers = section["num_hidden_layers"]
    step = section.get("decoder_sparse_step", 1)
    dense = {*section.get("mlp_only_layers", []), *(layer for layer in range(layers) if (layer + 1) % step)}
    return DecoderConfig(
        vocab_size=section["vocab_size"],
        hidden_size=section["hidden_size"],
        layers=layers,
        heads=heads,
        kv_heads=section["num_key_value_heads"],
        head_dim=section.get("head_dim", section["hidden_size"] // heads),
        intermediate_size=section["intermediate_size"],
        norm_eps=section.get("rms_norm_eps", 1e-6),
        rope_theta=float(section.get("rope_theta", rope.get("rope_theta", 1e6))),
        mrope_section=tuple(rope.get("mrope_section", ())),
        max_positions=section.get("max_position_embeddings", 32768),
        experts=experts,
        experts_per_token=section.get("num_experts_per_tok", 0),
        moe_intermediate_size=section.get("moe_intermediate_size", 0),
        shared_expert_size=section.get("shared_expert_intermediate_size", 0),
        norm_topk_prob=section.get("norm_topk_prob", True),
        dense_layers=tuple(sorted(dense)) if experts else (),
    )
