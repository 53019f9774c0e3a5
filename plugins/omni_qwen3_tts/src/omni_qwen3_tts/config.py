"""Reads and validates a checkpoint's ``config.json``: the fields that our networks need, from plain JSON. Imports no torch.

A field that would change the numbers and is not implemented is an error; nothing is allocated before all of it has been checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen

from omni_core.api import ConfigError
from omni_torch.api import Section, read_json

MODEL = "Qwen3-TTS"

BASE, CUSTOM_VOICE, VOICE_DESIGN = "base", "custom_voice", "voice_design"
"""Values of ``tts_model_type``: voices of recordings, voices of the checkpoint, voices that are described."""

KINDS = (BASE, CUSTOM_VOICE, VOICE_DESIGN)

SIZES_WITHOUT_STYLE = ("0b6",)
"""Values of ``tts_model_size`` of CustomVoice checkpoints that were not taught instructions; the reference drops theirs."""

CODEC = "speech_tokenizer"
"""The folder of the codec in a checkpoint."""

_WIDTH, _INNER, _LAYERS, _VOCABULARY, _POSITIONS = 65536, 2**20, 1024, 2**22, 2**24


@frozen
class DecoderConfig:
    """A Qwen3 decoder: the talker's or the code predictor's."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    max_positions: int
    attention_bias: bool


@frozen
class SpeakerEncoderConfig:
    """The network that makes a voice's embedding of a recording (ECAPA-TDNN).

    Attributes:
        channels, kernels, dilations: of the first layer, of each block, and of the layer that joins them.
        scale: parts of a block's channels, each of which sees those before it.
        gate: channels of a block's gate.
        attention: channels of the pooling's attention.
    """

    mels: int
    size: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention: int
    scale: int
    gate: int
    sample_rate: int


@frozen
class TTSConfig:
    """A Qwen3-TTS checkpoint's config.

    Attributes:
        kind: one of :data:`KINDS`.
        reads_style: it follows instructions.
        text_vocab_size, text_hidden_size: of the embeddings of text.
        code_groups: codes of a frame.
        languages: the ids of languages and dialects by name; ``speakers``: of voices, in lower case.
        dialects: the dialect of each speaker who has one.
        speaker_encoder: of Base checkpoints.
    """

    kind: str
    reads_style: bool
    talker: DecoderConfig
    predictor: DecoderConfig
    text_vocab_size: int
    text_hidden_size: int
    code_groups: int
    codec_pad: int
    codec_bos: int
    codec_eos: int
    codec_think: int
    codec_nothink: int
    codec_think_bos: int
    codec_think_eos: int
    im_start: int
    im_end: int
    tts_pad: int
    tts_bos: int
    tts_eos: int
    languages: dict[str, int]
    speakers: dict[str, int]
    dialects: dict[str, str]
    speaker_encoder: SpeakerEncoderConfig | None

    @property
    def spoken(self) -> list[str]:
        """The languages that a request may ask for: dialects come with their speakers."""
        return [name for name in self.languages if "dialect" not in name]


def read_config(folder: str | Path) -> TTSConfig:
    """Read ``config.json`` of a checkpoint folder.

    Raises:
        ConfigError: the file is missing or unreadable, or a field is missing, out of range or not implemented; the message names
            file, field, value and what is allowed.
    """
    return parse_config(read_json(Path(folder) / "config.json"))


def parse_config(raw: dict[str, Any]) -> TTSConfig:
    """Read the config from a JSON document; see :func:`read_config`."""
    root = Section(raw, "config.json", MODEL)
    root.choice("model_type", ("qwen3_tts",), "qwen3_tts")
    root.choice("tokenizer_type", ("qwen3_tts_tokenizer_12hz",), "qwen3_tts_tokenizer_12hz")
    kind = root.choice("tts_model_type", KINDS, CUSTOM_VOICE)
    section = root.section("talker_config")
    talker, predictor = _decoder(section), _decoder(section.section("code_predictor_config"))
    groups = section.integer("num_code_groups", 2, 256)
    if section.section("code_predictor_config").integer("num_code_groups", 2, 256, groups) != groups:
        raise section.section("code_predictor_config").fail("num_code_groups", f"the talker's, {groups}")
    text_size, last = section.integer("text_vocab_size", 1, _VOCABULARY), talker.vocab_size - 1
    languages, speakers = _ids(section, "codec_language_id", last), _ids(section, "spk_id", last)
    dialects = section.section("spk_is_dialect", optional=True)
    spoken_in = {
        name.lower(): dialects[name]
        for name in (section.get("spk_is_dialect", None) or {})
        if dialects[name] is not False
    }
    for name, dialect in spoken_in.items():
        if dialect not in languages or name not in speakers:
            raise dialects.fail(name, f"false, or one of talker_config.codec_language_id: {', '.join(languages)}")

    def marker(name: str) -> int:
        return section.integer(name, 0, last)

    def token(name: str) -> int:
        return root.integer(name, 0, text_size - 1)

    return TTSConfig(
        kind=kind,
        reads_style=kind == VOICE_DESIGN
        or (kind == CUSTOM_VOICE and root.get("tts_model_size", None) not in SIZES_WITHOUT_STYLE),
        talker=talker,
        predictor=predictor,
        text_vocab_size=text_size,
        text_hidden_size=section.integer("text_hidden_size", 1, _WIDTH),
        code_groups=groups,
        codec_pad=marker("codec_pad_id"),
        codec_bos=marker("codec_bos_id"),
        codec_eos=marker("codec_eos_token_id"),
        codec_think=marker("codec_think_id"),
        codec_nothink=marker("codec_nothink_id"),
        codec_think_bos=marker("codec_think_bos_id"),
        codec_think_eos=marker("codec_think_eos_id"),
        im_start=token("im_start_token_id"),
        im_end=token("im_end_token_id"),
        tts_pad=token("tts_pad_token_id"),
        tts_bos=token("tts_bos_token_id"),
        tts_eos=token("tts_eos_token_id"),
        languages=languages,
        speakers=speakers,
        dialects=spoken_in,
        speaker_encoder=_speaker_encoder(root.section("speaker_encoder_config", optional=True), talker)
        if kind == BASE
        else None,
    )


def _ids(section: Section, name: str, last: int) -> dict[str, int]:
    ids = section.section(name, optional=True)
    return {each.lower(): ids.integer(each, 0, last) for each in section.get(name, None) or {}}


def _decoder(section: Section) -> DecoderConfig:
    heads = section.integer("num_attention_heads", 1, 1024)
    kv_heads = section.integer("num_key_value_heads", 1, heads)
    section.multiple("num_attention_heads", "num_key_value_heads")
    hidden = section.integer("hidden_size", 1, _WIDTH)
    head_dim = section.integer("head_dim", 2, 1024, max(2, hidden // heads))
    if head_dim % 2:
        raise section.fail("head_dim", "an even number")
    section.choice("hidden_act", ("silu",), "silu")
    rope = section.section("rope_scaling", optional=True)
    # Every position of speech is alike on the three axes of these positions, so their sections change nothing.
    for name in ("rope_type", "type"):
        rope.choice(name, ("default",), "default")
    if "sliding_attention" in section.strings("layer_types", ()) or section.flag("use_sliding_window", False):
        raise section.fail("use_sliding_window", "false (sliding windows in the decoders are not implemented)")
    return DecoderConfig(
        vocab_size=section.integer("vocab_size", 1, _VOCABULARY),
        hidden_size=hidden,
        layers=section.integer("num_hidden_layers", 1, _LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=section.integer("intermediate_size", 1, _INNER),
        norm_eps=section.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
        rope_theta=section.number("rope_theta", 1.0, 1e12, 10_000.0),
        max_positions=section.integer("max_position_embeddings", 1, _POSITIONS, 32768),
        attention_bias=section.flag("attention_bias", False),
    )


def _speaker_encoder(section: Section, talker: DecoderConfig) -> SpeakerEncoderConfig:
    channels = section.integers("enc_channels", 1, _WIDTH, (512, 512, 512, 512, 1536))
    kernels = section.integers("enc_kernel_sizes", 1, 1024, (5, 3, 3, 3, 1))
    dilations = section.integers("enc_dilations", 1, 1024, (1, 2, 3, 4, 1))
    if not 3 <= len(channels) == len(kernels) == len(dilations):
        raise section.fail("enc_channels", "as long as enc_kernel_sizes and enc_dilations, and at least 3")
    if sum(channels[1:-1]) != channels[-1] or len(set(channels[:-1])) > 1:
        raise section.fail("enc_channels", "equal widths, and at last their sum over the blocks")
    size = section.integer("enc_dim", 1, _WIDTH, 1024)
    if size != talker.hidden_size:
        raise section.fail("enc_dim", f"the talker's hidden_size, {talker.hidden_size}")
    scale = section.integer("enc_res2net_scale", 2, 1024, 8)
    if channels[0] % scale:
        raise section.fail("enc_res2net_scale", f"a divisor of enc_channels, {channels[0]}")
    return SpeakerEncoderConfig(
        mels=section.integer("mel_dim", 1, 1024, 128),
        size=size,
        channels=channels,
        kernels=kernels,
        dilations=dilations,
        attention=section.integer("enc_attention_channels", 1, _WIDTH, 128),
        scale=scale,
        gate=section.integer("enc_se_channels", 1, _WIDTH, 128),
        sample_rate=section.choice("sample_rate", (24_000,), 24_000),
    )


def generation_defaults(folder: str | Path) -> dict[str, Any]:
    """Return the settings of ``generation_config.json``; none if the file is missing or unreadable."""
    try:
        return read_json(Path(folder) / "generation_config.json")
    except ConfigError:
        return {}
