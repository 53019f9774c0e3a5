"""Reads and validates the ``config.json`` of a checkpoint's codec. Imports no torch."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from attrs import frozen

from omni_qwen3_tts.config import CODEC
from omni_torch.api import Section, read_json

SAMPLE_RATE = 24_000
"""Hz, of what is heard and of what is spoken."""

_WIDTH, _INNER = 65536, 2**20


@frozen
class EncoderConfig:
    """The dimensions of the encoder.

    Attributes:
        rates: of the convolutions, the last first.
        codebook_dim: width of the codebooks' entries.
    """

    filters: int
    kernel: int
    last_kernel: int
    residual_kernel: int
    residual_layers: int
    dilation_growth: int
    compress: int
    rates: tuple[int, ...]
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    attention_bias: bool
    codebook_dim: int


@frozen
class CodecConfig:
    """The dimensions of a codec.

    Attributes:
        codebook_dim: width of what a frame's codes stand for; ``latent``: of the convolutions' input; ``hidden_size``: of the transformer.
        window: frames that one attends to, itself included.
        rates: of the upsampling in the transposed convolutions of the decoder; ``upsampling``: of those before it.
        samples_per_frame: of the sound.
        encoder: ``None``: there is none.
    """

    codebooks: int
    codebook_size: int
    codebook_dim: int
    hidden_size: int
    latent: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    window: int
    attention_bias: bool
    decoder_size: int
    rates: tuple[int, ...]
    upsampling: tuple[int, ...]
    samples_per_frame: int
    encoder: EncoderConfig | None = None


def read_codec(model_path: str | Path) -> CodecConfig:
    """Read the codec's config of a checkpoint folder.

    Raises:
        ConfigError: the file is missing, or a field is missing, out of range or not implemented.
    """
    return parse_codec(read_json(Path(model_path) / CODEC / "config.json"))


def parse_codec(raw: dict[str, Any]) -> CodecConfig:
    """Read the config from a JSON document; see :func:`read_codec`."""
    root = Section(raw, f"{CODEC}/config.json", "Qwen3-TTS codec")
    root.choice("model_type", ("qwen3_tts_tokenizer_12hz",), "qwen3_tts_tokenizer_12hz")
    for name in ("input_sample_rate", "output_sample_rate"):
        root.choice(name, (SAMPLE_RATE,), SAMPLE_RATE)
    section = root.section("decoder_config")
    heads = section.integer("num_attention_heads", 1, 1024, 16)
    kv_heads = section.integer("num_key_value_heads", 1, heads, heads)
    section.multiple("num_attention_heads", "num_key_value_heads")
    hidden = section.integer("hidden_size", 1, _WIDTH, 1024)
    section.choice("hidden_act", ("silu",), "silu")
    rates = section.integers("upsample_rates", 2, 64, (8, 5, 4, 3))
    upsampling = section.integers("upsampling_ratios", 1, 64, (2, 2))
    samples = prod(rates) * prod(upsampling)
    for name in ("decode_upsample_rate", "encode_downsample_rate"):
        root.choice(name, (samples,), samples)
    decoder = section.integer("decoder_dim", 2, _WIDTH, 1536)
    if decoder % 2 ** len(rates):
        raise section.fail("decoder_dim", f"a multiple of {2 ** len(rates)}: each upsampling halves it")
    codebooks = section.integer("num_quantizers", 2, 256, 16)
    dim = section.integer("codebook_dim", 2, _WIDTH)
    if dim % 2:
        raise section.fail("codebook_dim", "an even number")
    root.choice("encoder_valid_num_quantizers", (codebooks,), codebooks)
    return CodecConfig(
        codebooks=codebooks,
        codebook_size=section.integer("codebook_size", 1, 2**20, 2048),
        codebook_dim=dim,
        hidden_size=hidden,
        latent=section.integer("latent_dim", 1, _WIDTH, 1024),
        layers=section.integer("num_hidden_layers", 1, 1024, 8),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=section.integer("head_dim", 2, 1024, max(2, hidden // heads)),
        intermediate_size=section.integer("intermediate_size", 1, _INNER, 3072),
        norm_eps=section.number("rms_norm_eps", 1e-12, 1.0, 1e-5),
        rope_theta=section.number("rope_theta", 1.0, 1e12, 10_000.0),
        window=section.integer("sliding_window", 1, 2**20, 72),
        attention_bias=section.flag("attention_bias", False),
        decoder_size=decoder,
        rates=rates,
        upsampling=upsampling,
        samples_per_frame=samples,
        encoder=_encoder(root.section("encoder_config"), samples) if "encoder_config" in root else None,
    )


def _encoder(section: Section, samples_per_frame: int) -> EncoderConfig:
    """Read the encoder's section. The defaults are those of transformers' class for it."""
    for name, value in (("use_causal_conv", True), ("use_conv_shortcut", False), ("pad_mode", "constant")):
        section.choice(name, (value,), value)
    section.choice("hidden_act", ("gelu",), "gelu")
    section.choice("num_semantic_quantizers", (1,), 1)
    section.choice("audio_channels", (1,), 1)
    rates = section.integers("upsampling_ratios", 2, 64, (8, 6, 5, 4))
    if 2 * prod(rates) != samples_per_frame:
        raise section.fail(
            "upsampling_ratios", f"whole numbers whose product is {samples_per_frame / 2:g}, half a frame"
        )
    heads, hidden = section.integer("num_attention_heads", 1, 1024, 8), section.integer("hidden_size", 1, _WIDTH, 512)
    dim = section.integer("vector_quantization_hidden_dimension", 1, _WIDTH, 256)
    if dim == hidden:
        raise section.fail("vector_quantization_hidden_dimension", f"another than hidden_size, {hidden}")
    section.choice("codebook_dim", (dim,), dim)
    filters, compress = section.integer("num_filters", 1, _WIDTH, 64), section.integer("compress", 1, 64, 2)
    if filters % compress:
        raise section.fail("num_filters", f"a multiple of compress, {compress}")
    return EncoderConfig(
        filters=filters,
        kernel=section.integer("kernel_size", 1, 64, 7),
        last_kernel=section.integer("last_kernel_size", 1, 64, 3),
        residual_kernel=section.integer("residual_kernel_size", 1, 64, 3),
        residual_layers=section.integer("num_residual_layers", 1, 64, 1),
        dilation_growth=section.integer("dilation_growth_rate", 1, 64, 2),
        compress=compress,
        rates=rates,
        hidden_size=hidden,
        layers=section.integer("num_hidden_layers", 1, 1024, 8),
        heads=heads,
        kv_heads=section.integer("num_key_value_heads", 1, heads, heads),
        head_dim=section.integer("head_dim", 2, 1024, max(2, hidden // heads)),
        intermediate_size=section.integer("intermediate_size", 1, _INNER, 2048),
        norm_eps=section.number("norm_eps", 1e-12, 1.0, 1e-5),
        rope_theta=section.number("rope_theta", 1.0, 1e12, 10_000.0),
        attention_bias=section.flag("attention_bias", False),
        codebook_dim=dim,
    )
