"""The dimensions of tiny Qwen3-TTS checkpoints, and their config in the released layout."""

from __future__ import annotations

from math import prod
from typing import Any

from attrs import evolve, frozen

LANGUAGES = ("chinese", "english", "german", "beijing_dialect")
SPEAKERS = {"serena": False, "ryan": False, "dylan": "beijing_dialect"}

CODEBOOK = 32
"""Codes of a codebook. The talker has 1024 further ids for markers, of which it may choose one."""


@frozen
class Shape:
    """Dimensions of a checkpoint; ``a`` by default, with a code predictor as wide as the talker, as in the release of 0.6 B.

    Attributes:
        kind: of ``tts_model_type``.
        predictor_layers: by default one fewer than the talker's, at least one.
        end_gain: a factor of the head's row of the end of speech, so that some speech ends before its limit.
    """

    kind: str = "custom_voice"
    size: str = "1b7"
    hidden: int = 32
    text_hidden: int = 24
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    predictor_hidden: int = 32
    predictor_layers: int = 0
    groups: int = 4
    merges: int = 60
    rates: tuple[int, ...] = (5, 4, 3)
    upsampling: tuple[int, ...] = (2, 2)
    latent: int = 16
    codec_hidden: int = 16
    codebook_dim: int = 16
    window: int = 6
    decoder: int = 32
    encoder_rates: tuple[int, ...] = (6, 5, 4)
    end_gain: float = 1.6
    codebook: int = CODEBOOK


_A = Shape()
_B = evolve(
    _A, hidden=40, heads=6, kv_heads=3, predictor_hidden=24, groups=5, layers=1, rates=(4, 3), upsampling=(2,),
    encoder_rates=(4, 3), latent=12, window=4, decoder=16,
)  # fmt: skip
_C = evolve(
    _A, size="0b6", hidden=24, text_hidden=32, heads=3, kv_heads=3, head_dim=16, predictor_hidden=24, groups=3, layers=3,
    rates=(8, 5), encoder_rates=(10, 8), codec_hidden=24, decoder=24,
)  # fmt: skip
_KINDS = {"": "custom_voice", "base-": "base", "design-": "voice_design"}

SHAPES = {
    **{f"{prefix}{name}": evolve(each, kind=kind) for prefix, kind in _KINDS.items() for name, each in (("a", _A), ("b", _B), ("c", _C))},
    "mid": Shape(
        hidden=512, text_hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64, predictor_hidden=512, predictor_layers=2, groups=16,
        rates=(8, 5, 4, 3), upsampling=(2, 2), latent=256, codec_hidden=256, codebook_dim=128, window=72, decoder=256,
        encoder_rates=(8, 6, 5, 4), end_gain=0.0, codebook=512,
    ),
    "large": Shape(
        hidden=1024, text_hidden=2048, layers=28, heads=16, kv_heads=8, head_dim=128, predictor_hidden=1024, predictor_layers=5,
        groups=16, rates=(8, 5, 4, 3), upsampling=(2, 2), latent=1024, codec_hidden=512, codebook_dim=512, window=72, decoder=1536,
        encoder_rates=(8, 6, 5, 4), end_gain=0.0, codebook=2048,
    ),
}  # fmt: skip
"""Dimensions by name: three of each kind; for measurements one of 40 M parameters, and one of about the release's 0.6 B."""


def model_config(dims: Shape, tokens: dict[str, int]) -> dict[str, Any]:
    """Return ``config.json``. ``tokens``: ids of the tokenizer's markers, and its size as ``vocabulary``."""
    first = dims.codebook
    markers = ("codec_pad_id", "codec_bos_id", "codec_eos_token_id", "codec_think_id", "codec_nothink_id")
    ids = {name: first + number for number, name in enumerate((*markers, "codec_think_bos_id", "codec_think_eos_id"))}
    decoder = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False, "rope_theta": 1_000_000}
    decoder |= {"head_dim": dims.head_dim, "num_attention_heads": dims.heads, "num_key_value_heads": dims.kv_heads}
    predictor = {
        **decoder,
        "model_type": "qwen3_tts_talker_code_predictor",
        "vocab_size": dims.codebook,
        "hidden_size": dims.predictor_hidden,
        "intermediate_size": 2 * dims.predictor_hidden,
        "num_hidden_layers": dims.predictor_layers or max(1, dims.layers - 1),
        "num_code_groups": dims.groups,
        "max_position_embeddings": 65536,
        "rope_scaling": None,
    }
    half = dims.head_dim // 2
    talker = {
        **decoder,
        **ids,
        "model_type": "qwen3_tts_talker",
        "code_predictor_config": predictor,
        "vocab_size": dims.codebook + 1024,
        "hidden_size": dims.hidden,
        "intermediate_size": 2 * dims.hidden,
        "num_hidden_layers": dims.layers,
        "num_code_groups": dims.groups,
        "max_position_embeddings": 32768,
        "text_hidden_size": dims.text_hidden,
        "text_vocab_size": tokens["vocabulary"],
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [half - 2 * (half // 3), half // 3, half // 3],
            "rope_type": "default",
        },
        "codec_language_id": {name: first + 20 + number for number, name in enumerate(LANGUAGES)},
        "spk_id": {},
        "spk_is_dialect": {},
    }
    if dims.kind == "custom_voice":
        talker["spk_id"] = {name: first + 40 + number for number, name in enumerate(SPEAKERS)}
        talker["spk_is_dialect"] = dict(SPEAKERS)
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": dims.size,
        "tts_model_type": dims.kind,
        "im_start_token_id": tokens["<|im_start|>"],
        "im_end_token_id": tokens["<|im_end|>"],
        "tts_pad_token_id": tokens["<tts_pad>"],
        "tts_bos_token_id": tokens["<tts_text_bos>"],
        "tts_eos_token_id": tokens["<tts_text_eod>"],
        "talker_config": talker,
        "speaker_encoder_config": {
            "mel_dim": 128,
            "enc_dim": dims.hidden,
            "enc_channels": [8, 8, 8, 16],
            "enc_kernel_sizes": [5, 3, 3, 1],
            "enc_dilations": [1, 2, 3, 1],
            "enc_attention_channels": 6,
            "enc_res2net_scale": 4,
            "enc_se_channels": 4,
            "sample_rate": 24_000,
        },
    }


def codec_config(dims: Shape) -> dict[str, Any]:
    """Return ``speech_tokenizer/config.json``."""
    samples = prod(dims.rates) * prod(dims.upsampling)
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": dims.groups,
        "input_sample_rate": 24_000,
        "output_sample_rate": 24_000,
        "decode_upsample_rate": samples,
        "encode_downsample_rate": samples,
        "decoder_config": {
            "attention_bias": False,
            "codebook_dim": dims.codebook_dim,
            "codebook_size": dims.codebook,
            "decoder_dim": dims.decoder,
            "head_dim": 8 if dims.codec_hidden < 100 else 64,
            "hidden_act": "silu",
            "hidden_size": dims.codec_hidden,
            "intermediate_size": 2 * dims.codec_hidden,
            "latent_dim": dims.latent,
            "layer_scale_initial_scale": 0.01,
            "max_position_embeddings": 8000,
            "num_attention_heads": 2 if dims.codec_hidden < 100 else 4,
            "num_hidden_layers": dims.layers,
            "num_key_value_heads": 2 if dims.codec_hidden < 100 else 4,
            "num_quantizers": dims.groups,
            "num_semantic_quantizers": 1,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000,
            "sliding_window": dims.window,
            "upsample_rates": list(dims.rates),
            "upsampling_ratios": list(dims.upsampling),
        },
        "encoder_config": {
            "audio_channels": 1,
            "codebook_dim": 8,
            "codebook_size": dims.codebook,
            "compress": 2,
            "frame_rate": 24_000 / samples,
            "head_dim": 8,
            "hidden_act": "gelu",
            "hidden_size": 16,
            "intermediate_size": 32,
            "kernel_size": 7,
            "last_kernel_size": 3,
            "norm_eps": 1e-5,
            "num_attention_heads": 2,
            "num_filters": 4,
            "num_hidden_layers": dims.layers,
            "num_key_value_heads": 2,
            "num_quantizers": dims.groups + 2,
            "num_residual_layers": 1,
            "num_semantic_quantizers": 1,
            "pad_mode": "constant",
            "residual_kernel_size": 3,
            "rope_theta": 10_000,
            "sampling_rate": 24_000,
            "sliding_window": 250,
            "upsample_groups": 16,
            "upsampling_ratios": list(dims.encoder_rates),
            "use_causal_conv": True,
            "use_conv_shortcut": False,
            "vector_quantization_hidden_dimension": 8,
        },
    }


GENERATION = {
    "do_sample": True,
    "max_new_tokens": 8192,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
}
"""``generation_config.json``."""

EXTRACTOR = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24_000,
}
"""``speech_tokenizer/preprocessor_config.json``, which the reference reads."""
