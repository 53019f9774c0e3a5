"""Reads and validates a checkpoint's ``config.json``: the fields that our decoders and the prompt need, from plain JSON.

The sections of the encoders and of token2wav are read by transformers' classes, whose networks compute them. Imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen

from omni_qwen3.config import DecoderConfig
from omni_torch.api import Section, load_checked, read_json

MODEL = "Qwen2.5-Omni"

LAYERS, HEADS, WIDTH, INNER, VOCABULARY, POSITIONS = 1024, 1024, 2**17, 2**20, 2**24, 2**24
"""Upper bounds on the dimensions of a config: far above any known model, and low enough that startup stays fast."""

DIMENSIONS = {
    "vision_config": (
        "hidden_size", "depth", "spatial_merge_size", "intermediate_size", "out_hidden_size", "temporal_patch_size", "patch_size",
    ),
    "audio_config": ("d_model", "encoder_layers", "encoder_ffn_dim", "num_mel_bins", "output_dim"),
    "dit_config": ("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "ff_mult", "mel_dim", "block_size"),
    "bigvgan_config": ("upsample_initial_channel", "mel_dim"),
}  # fmt: skip
"""The whole numbers from which planning computes sizes, of the sections that transformers' classes read."""


@frozen
class TalkerConfig:
    """The talker's decoder and the ids of its markers.

    Attributes:
        embedding_size: the width of its inputs, the thinker's.
        text_end, text_pad: ids of the thinker's vocabulary that follow the text.
        codec_start, codec_end, codec_pad, codec_mask: ids of its own vocabulary.
        codes: ids below this are codes of speech, which token2wav can read.
        most_codes: of one speech, by its frames.
    """

    decoder: DecoderConfig
    embedding_size: int
    text_end: int
    text_pad: int
    codec_start: int
    codec_end: int
    codec_pad: int
    codec_mask: int
    codes: int
    most_codes: int


@frozen
class OmniConfig:
    """A Qwen2.5-Omni checkpoint's config.

    Attributes:
        raw: the whole JSON document.
        talker: ``None`` if the checkpoint has no speech.
        end: ids that end a reply; empty if the config does not say.
        image, video, audio: ids of the placeholders.
        audio_start, audio_end: of the markers around sound.
        per_second: rotary positions of a second of video or sound.
        chunk_seconds: seconds of pictures and of sound that alternate.
    """

    raw: dict[str, Any]
    thinker: DecoderConfig
    talker: TalkerConfig | None
    end: tuple[int, ...]
    image: int
    video: int
    audio: int
    audio_start: int
    audio_end: int
    per_second: int
    chunk_seconds: float


def read_config(folder: str | Path) -> OmniConfig:
    """Read ``config.json`` of a checkpoint folder.

    Raises:
        ConfigError: the file is missing or unreadable, or a field is missing, out of range or not implemented; the message names
            file, field, value and what is allowed.
    """
    return parse_config(read_json(Path(folder) / "config.json"))


def parse_config(raw: dict[str, Any]) -> OmniConfig:
    """Read the config from a JSON document; see :func:`read_config`."""
    root = Section(raw, "config.json", MODEL)
    thinker = root.section("thinker_config")
    text = thinker.section("text_config")
    decoder = _decoder(text)
    last = decoder.vocab_size - 1
    _check_dimensions(thinker, "audio_config", "vision_config")
    talker = None
    if root.flag("enable_audio_output", True):
        talker = _talker(root, decoder)
        _check_dimensions(root.section("token2wav_config"), "dit_config", "bigvgan_config")
    return OmniConfig(
        raw=raw,
        thinker=decoder,
        talker=talker,
        end=_end_ids(thinker) or _end_ids(text),
        image=_token(thinker, "image_token", 151655, last),
        video=_token(thinker, "video_token", 151656, last),
        audio=_token(thinker, "audio_token", 151646, last),
        audio_start=thinker.integer("audio_start_token_id", 0, last, 151647),
        audio_end=thinker.integer("audio_end_token_id", 0, last, 151648),
        per_second=thinker.integer("position_id_per_seconds", 1, 10**6, 25),
        chunk_seconds=thinker.number("seconds_per_chunk", 1e-3, 1e6, 2),
    )


def _check_dimensions(parent: Section, *names: str) -> None:
    for name in names:
        section = parent.section(name)
        for dimension in DIMENSIONS[name]:
            section.integer(dimension, 1, INNER, 1)
        if name == "bigvgan_config":
            _check_vocoder(section)


def _check_vocoder(section: Section) -> None:
    rates = section.integers("upsample_rates", 1, 1024, (5, 3, 2, 2, 2, 2))
    if len(section.integers("upsample_kernel_sizes", 1, 1024, (11, 7, 4, 4, 4, 4))) != len(rates):
        raise section.fail("upsample_kernel_sizes", f"{len(rates)} numbers, as upsample_rates")
    count = len(section.integers("resblock_kernel_sizes", 1, 1024, (3, 7, 11)))
    dilations = section.get("resblock_dilation_sizes", [[1, 3, 5]] * 3)
    lists = isinstance(dilations, list) and all(isinstance(each, list) for each in dilations)
    if not lists or len(dilations) != count or not all(type(each) is int for row in dilations for each in row):
        raise section.fail("resblock_dilation_sizes", f"{count} lists of whole numbers, as resblock_kernel_sizes")


def part_config(config: OmniConfig, *path: str) -> Any:
    """Return a section as an object of transformers' class for it.

    Args:
        path: such as ``"thinker_config", "vision_config"``.

    Raises:
        ConfigError: the section is missing, or the class refuses a value.
    """
    from transformers.models.qwen2_5_omni import configuration_qwen2_5_omni as classes

    kinds = {
        "vision_config": classes.Qwen2_5OmniVisionEncoderConfig,
        "audio_config": classes.Qwen2_5OmniAudioEncoderConfig,
        "dit_config": classes.Qwen2_5OmniDiTConfig,
        "bigvgan_config": classes.Qwen2_5OmniBigVGANConfig,
    }
    section = Section(config.raw, "config.json", MODEL)
    for name in path:
        section = section.section(name)
    made = load_checked(".".join(("config.json", *path)), lambda: kinds[path[-1]](**section.values))
    made._attn_implementation = "sdpa"
    return made


def _token(section: Section, name: str, default: int, last: int) -> int:
    """Return an id that configs have under either of two names."""
    key = f"{name}_id" if f"{name}_id" in section else f"{name}_index"
    return section.integer(key, 0, last, default)


def _end_ids(section: Section) -> tuple[int, ...]:
    if isinstance(section.get("eos_token_id", []), list):
        return section.integers("eos_token_id", 0, VOCABULARY, ())
    return (section.integer("eos_token_id", 0, VOCABULARY),)


def _talker(root: Section, thinker: DecoderConfig) -> TalkerConfig:
    section = root.section("talker_config")
    decoder = _decoder(section)
    last, last_text = decoder.vocab_size - 1, thinker.vocab_size - 1
    if section["embedding_size"] != thinker.hidden_size:
        raise section.fail("embedding_size", f"the thinker's hidden_size, {thinker.hidden_size}")
    own, others = section.get("position_id_per_seconds", 25), root.section("thinker_config")
    if own != others.get("position_id_per_seconds", 25):
        raise section.fail("position_id_per_seconds", "the thinker's")
    dit = root.section("token2wav_config").section("dit_config")
    return TalkerConfig(
        decoder=decoder,
        embedding_size=thinker.hidden_size,
        text_end=section.integer("tts_text_end_token_id", 0, last_text, 151861),
        text_pad=section.integer("tts_text_pad_token_id", 0, last_text, 151859),
        codec_start=section.integer("tts_codec_start_token_id", 0, last, 8293),
        codec_end=section.integer("tts_codec_end_token_id", 0, last, 8294),
        codec_pad=section.integer("tts_codec_pad_token_id", 0, last, 8292),
        codec_mask=section.integer("tts_codec_mask_token_id", 0, last, 8296),
        codes=dit.integer("num_embeds", 1, VOCABULARY, 8193) + 1,
        most_codes=dit.integer("max_position_embeddings", 1, POSITIONS, 32768) // dit.integer("repeats", 1, 1024, 2),
    )


def _decoder(section: Section) -> DecoderConfig:
    """Read a decoder's section. The defaults are those of transformers' class for it."""
    heads = section.integer("num_attention_heads", 1, HEADS)
    kv_heads = section.integer("num_key_value_heads", 1, heads)
    section.multiple("num_attention_heads", "num_key_value_heads")
    hidden = section.integer("hidden_size", 1, WIDTH)
    head_dim = section.integer("head_dim", 2, 1024, max(2, hidden // heads))
    if section.flag("use_sliding_window", False) or "sliding_attention" in section.strings("layer_types", ()):
        raise section.fail("use_sliding_window", "false (sliding windows in the decoders are not implemented)")
    section.choice("hidden_act", ("silu",), "silu")
    rope = section.section("rope_scaling" if "rope_parameters" not in section else "rope_parameters", optional=True)
    for name in ("rope_type", "type"):
        rope.choice(name, ("default", "mrope"), "default")
    theta = section.number("rope_theta", 1.0, 1e12, 1e6)
    sections = rope.integers("mrope_section", 0, head_dim, (16, 24, 24))
    if len(sections) != 3 or 2 * sum(sections) != head_dim:
        raise rope.fail("mrope_section", f"three numbers whose sum is half of head_dim, {head_dim // 2}")
    return DecoderConfig(
        vocab_size=section.integer("vocab_size", 1, VOCABULARY),
        hidden_size=hidden,
        layers=section.integer("num_hidden_layers", 1, LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=section.integer("intermediate_size", 1, INNER),
        norm_eps=section.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
        rope_theta=rope.number("rope_theta", 1.0, 1e12, theta),
        mrope_section=sections,
        max_positions=section.integer("max_position_embeddings", 1, POSITIONS, 32768),
    )
