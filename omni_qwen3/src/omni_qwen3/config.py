"""Reads and validates a checkpoint's ``config.json``: the fields that our own networks need, from plain JSON.

Fields that the released config carries but transformers' classes do not declare (``head_dim``,
``shared_expert_intermediate_size``, ...) are read here like any other. A field that would change the numbers and is not
implemented is an error. Nothing is allocated before the whole config has been checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from omni_qwen3.encoder_config import (
    ACTIVATIONS,
    HEADS,
    INNER,
    LAYERS,
    POSITIONS,
    VOCABULARY,
    WIDTH,
    AudioConfig,
    VisionConfig,
    VocoderConfig,
    audio_config,
    rope_theta,
    vision_config,
    vocoder_config,
)
from omni_torch.api import Section, read_json

MODEL = "Qwen3-Omni"

BY_ROWS = ("q_proj.weight", "q_proj.bias", "gate_proj.weight", "up_proj.weight")
BY_COLUMNS = ("o_proj.weight", "down_proj.weight")
KEYS_AND_VALUES = ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias")
"""Ends of the names of tensors that tensor parallel ranks split; see :mod:`omni_qwen3.sharding`."""

EXPERTS = ".mlp.experts."
"""A part of the names of the tensors of a mixture's experts, which the shared expert's do not have."""


@frozen
class DecoderConfig:
    """A Qwen3 decoder: the thinker's, the talker's, or the code predictor's (``experts == 0``: dense).

    ``local_experts``: the numbers of the experts that this rank holds, with expert parallelism; ``None``: all.
    """

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
    activation: str = "silu"
    attention_bias: bool = False
    local_experts: range | None = None

    def is_sparse(self, layer: int) -> bool:
        """Return True if a layer's feed-forward is a mixture of experts."""
        return self.experts > 0 and layer not in self.dense_layers


@frozen
class TalkerConfig:
    """The talker's decoder and code predictor, and the ids of its markers. ``speakers``: ids by the name in lower case."""

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
    """A Qwen3-Omni checkpoint's config.

    Attributes:
        raw: the whole JSON document.
        folder: where the checkpoint lies.
        vocoder: ``None`` if the checkpoint has no speech.
    """

    raw: dict[str, Any]
    thinker: DecoderConfig
    talker: TalkerConfig
    vision: VisionConfig
    audio: AudioConfig
    vocoder: VocoderConfig | None
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
        ConfigError: the file is missing or unreadable, or a field is missing, out of range or not implemented; the message names
            file, field, value and what is allowed.
    """
    return evolve(parse_config(read_json(Path(folder) / "config.json")), folder=str(folder))


def parse_config(raw: dict[str, Any]) -> QwenConfig:
    """Read the config from a JSON document; see :func:`read_config`."""
    root = Section(raw, "config.json", MODEL)
    thinker, talker = root.section("thinker_config"), root.section("talker_config")
    text = _decoder(thinker.section("text_config"), default_section=(24, 20, 20), norm_topk_prob=True)
    last = text.vocab_size - 1
    for part in (thinker, talker):
        part.flag("tie_word_embeddings", False)
    thinker.number("position_id_per_seconds", 1e-3, 1e6)
    for name in ("vision_start_token_id", "audio_start_token_id", "audio_end_token_id"):
        thinker.integer(name, 0, last)
    speech = _talker(talker, text)
    return QwenConfig(
        raw=raw,
        thinker=text,
        talker=speech,
        vision=vision_config(thinker.section("vision_config"), text.hidden_size, text.layers),
        audio=audio_config(thinker.section("audio_config"), text.hidden_size),
        vocoder=vocoder_config(root.section("code2wav_config"), speech.code_groups)
        if "code2wav_config" in root
        else None,
        image_token=thinker.integer("image_token_id", 0, last),
        video_token=thinker.integer("video_token_id", 0, last),
        audio_token=thinker.integer("audio_token_id", 0, last),
        im_start=root.integer("im_start_token_id", 0, last),
        im_end=root.integer("im_end_token_id", 0, last),
        user=root.integer("user_token_id", 0, last),
        assistant=root.integer("assistant_token_id", 0, last),
        tts_pad=root.integer("tts_pad_token_id", 0, last),
        tts_bos=root.integer("tts_bos_token_id", 0, last),
        tts_eos=root.integer("tts_eos_token_id", 0, last),
    )


def _talker(section: Section, thinker: DecoderConfig) -> TalkerConfig:
    text = _decoder(section.section("text_config"), default_section=(24, 20, 20), norm_topk_prob=False, talker=True)
    predictor = _decoder(section.section("code_predictor_config"))
    last = text.vocab_size - 1
    if predictor.hidden_size != text.hidden_size:
        raise section.section("code_predictor_config").fail("hidden_size", f"the talker's, {text.hidden_size}")
    if section["thinker_hidden_size"] != thinker.hidden_size:
        raise section.fail("thinker_hidden_size", f"the thinker's hidden_size, {thinker.hidden_size}")
    speakers = section.section("speaker_id")
    return TalkerConfig(
        text=text,
        predictor=predictor,
        thinker_hidden_size=thinker.hidden_size,
        code_groups=section.integer("num_code_groups", 2, 256),
        accept_hidden_layer=section.integer("accept_hidden_layer", 0, thinker.layers),
        codec_pad=section.integer("codec_pad_id", 0, last),
        codec_bos=section.integer("codec_bos_id", 0, last),
        codec_eos=section.integer("codec_eos_token_id", 0, last),
        codec_nothink=section.integer("codec_nothink_id", 0, last),
        codec_think_bos=section.integer("codec_think_bos_id", 0, last),
        codec_think_eos=section.integer("codec_think_eos_id", 0, last),
        speakers={name.lower(): speakers.integer(name, 0, last) for name in section["speaker_id"]},
    )


def _decoder(
    section: Section, *, default_section: tuple[int, ...] = (), norm_topk_prob: bool = True, talker: bool = False
) -> DecoderConfig:
    """Read a decoder's section. The defaults are those of transformers' class for it."""
    heads = section.integer("num_attention_heads", 1, HEADS)
    kv_heads = section.integer("num_key_value_heads", 1, heads)
    section.multiple("num_attention_heads", "num_key_value_heads")
    hidden = section.integer("hidden_size", 1, WIDTH)
    head_dim = section.integer("head_dim", 2, 1024, max(2, hidden // heads))
    if head_dim % 2:
        raise section.fail("head_dim", "an even number")
    layers = section.integer("num_hidden_layers", 1, LAYERS)
    experts = section.integer("num_local_experts" if "num_experts" not in section else "num_experts", 0, 4096, 0)
    step = section.integer("decoder_sparse_step", 1, LAYERS, 1)
    dense = {*section.integers("mlp_only_layers", 0, LAYERS, ()), *(n for n in range(layers) if (n + 1) % step)}
    theta, sections = _rope(section, head_dim, default_section)
    kinds = section.strings("layer_types", ("full_attention",))
    windowed = (
        section.get("sliding_window", None) is not None and section.integer("max_window_layers", 0, INNER, 28) < layers
    )
    if "sliding_attention" in kinds or ("layer_types" not in section and windowed):
        raise section.fail("sliding_window", "null (sliding windows in the decoders are not implemented)")
    return DecoderConfig(
        vocab_size=section.integer("vocab_size", 1, VOCABULARY),
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=section.integer("intermediate_size", 1, INNER),
        norm_eps=section.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
        rope_theta=theta,
        mrope_section=sections,
        max_positions=section.integer("max_position_embeddings", 1, POSITIONS, 32768),
        experts=experts,
        experts_per_token=section.integer("num_experts_per_tok", 1, experts) if experts else 0,
        moe_intermediate_size=section.integer("moe_intermediate_size", 1, INNER) if experts else 0,
        shared_expert_size=section.integer("shared_expert_intermediate_size", 1, INNER) if talker and experts else 0,
        norm_topk_prob=section.flag("norm_topk_prob", norm_topk_prob),
        dense_layers=tuple(sorted(dense)) if experts and not talker else (),  # all of the talker's layers are sparse
        activation=section.choice("hidden_act", ACTIVATIONS, "silu"),
        attention_bias=section.flag("attention_bias", False),
    )


def _rope(section: Section, head_dim: int, default: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
    """Read the base and the sections of a decoder's rotary positions, from the new or the old place in the config."""
    theta = rope_theta(section, ("default", "mrope"), 1e6)
    rope = section.section("rope_scaling" if "rope_parameters" not in section else "rope_parameters", optional=True)
    sections = rope.integers("mrope_section", 0, head_dim, default) if default else ()
    if len(sections) != len(default):
        raise rope.fail("mrope_section", "a list of three numbers: frequencies of time, height and width")
    return theta, sections
