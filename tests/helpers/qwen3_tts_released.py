"""The configs of the released checkpoints, as far as networks depend on them (second-hand: from printed copies), and
the names of their tensors. Imports no package of ours: the reference's environment has none."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

RELEASED = [("0b6", "custom_voice"), ("0b6", "base"), ("1b7", "custom_voice"), ("1b7", "base"), ("1b7", "voice_design")]


def released(size: str, kind: str) -> dict[str, Any]:
    """Return ``config.json`` of Qwen3-TTS-12Hz-0.6B or 1.7B (``0b6``, ``1b7``)."""
    width, inner = (1024, 3072) if size == "0b6" else (2048, 6144)
    decoder = {
        "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "num_attention_heads": 16, "num_key_value_heads": 8,
        "num_code_groups": 16, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False,
    }  # fmt: skip
    predictor = {
        **decoder, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5, "max_position_embeddings": 65536,
        "layer_types": ["full_attention"] * 5, "rope_scaling": None, "vocab_size": 2048,
        "model_type": "qwen3_tts_talker_code_predictor",
    }  # fmt: skip
    languages = {
        "chinese": 2055, "english": 2050, "german": 2053, "italian": 2070, "portuguese": 2071, "spanish": 2054, "japanese": 2058,
        "korean": 2064, "french": 2061, "russian": 2069,
    }  # fmt: skip
    speakers, dialects = {}, {}
    if kind == "custom_voice":
        languages |= {"beijing_dialect": 2074, "sichuan_dialect": 2062}
        speakers = {
            "serena": 3066, "vivian": 3065, "uncle_fu": 3010, "ryan": 3061, "aiden": 2861, "ono_anna": 2873, "sohee": 2864,
            "eric": 2875, "dylan": 2878,
        }  # fmt: skip
        dialects = {**dict.fromkeys(speakers, False), "eric": "sichuan_dialect", "dylan": "beijing_dialect"}
    talker = {
        **decoder, "code_predictor_config": predictor, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 28,
        "max_position_embeddings": 32768, "vocab_size": 3072, "text_hidden_size": 2048, "text_vocab_size": 151936,
        "codec_bos_id": 2149, "codec_eos_token_id": 2150, "codec_think_id": 2154, "codec_nothink_id": 2155, "codec_pad_id": 2148,
        "codec_think_bos_id": 2156, "codec_think_eos_id": 2157, "codec_language_id": languages, "spk_id": speakers,
        "spk_is_dialect": dialects, "model_type": "qwen3_tts_talker", "position_id_per_seconds": 13,
        "rope_scaling": {"interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default", "type": "default"},
    }  # fmt: skip
    config: dict[str, Any] = {
        "architectures": ["Qwen3TTSForConditionalGeneration"], "model_type": "qwen3_tts", "assistant_token_id": 77091,
        "im_end_token_id": 151645, "im_start_token_id": 151644, "tts_bos_token_id": 151672, "tts_eos_token_id": 151673,
        "tts_pad_token_id": 151671, "tokenizer_type": "qwen3_tts_tokenizer_12hz", "tts_model_size": size, "tts_model_type": kind,
        "talker_config": talker,
    }  # fmt: skip
    if kind == "base":
        config["speaker_encoder_config"] = {"enc_dim": width, "sample_rate": 24000}
    return config


CODEC: dict[str, Any] = {
    "architectures": ["Qwen3TTSTokenizerV2Model"], "model_type": "qwen3_tts_tokenizer_12hz", "encoder_valid_num_quantizers": 16,
    "input_sample_rate": 24000, "output_sample_rate": 24000, "decode_upsample_rate": 1920, "encode_downsample_rate": 1920,
    "decoder_config": {
        "attention_bias": False, "attention_dropout": 0.0, "latent_dim": 1024, "codebook_dim": 512, "codebook_size": 2048,
        "decoder_dim": 1536, "hidden_act": "silu", "hidden_size": 512, "intermediate_size": 1024, "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000, "head_dim": 64, "num_attention_heads": 16, "num_hidden_layers": 8,
        "num_key_value_heads": 16, "num_quantizers": 16, "num_semantic_quantizers": 1, "rms_norm_eps": 1e-05, "rope_theta": 10000,
        "semantic_codebook_size": 4096, "sliding_window": 72, "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": 512,
    },
    "encoder_config": {
        "_frame_rate": 12.5, "attention_bias": False, "audio_channels": 1, "codebook_dim": 256, "codebook_size": 2048, "compress": 2,
        "dilation_growth_rate": 2, "head_dim": 64, "hidden_act": "gelu", "hidden_size": 512, "intermediate_size": 2048,
        "kernel_size": 7, "last_kernel_size": 3, "layer_scale_initial_scale": 0.01, "max_position_embeddings": 8000,
        "norm_eps": 1e-05, "num_attention_heads": 8, "num_filters": 64, "num_hidden_layers": 8, "num_key_value_heads": 8,
        "num_quantizers": 32, "num_residual_layers": 1, "num_semantic_quantizers": 1, "pad_mode": "constant",
        "residual_kernel_size": 3, "rope_theta": 10000, "sampling_rate": 24000, "sliding_window": 250, "trim_right_ratio": 1.0,
        "upsample_groups": 512, "upsampling_ratios": [8, 6, 5, 4], "use_causal_conv": True, "use_conv_shortcut": False,
        "vector_quantization_hidden_dimension": 256,
    },
}  # fmt: skip
"""``speech_tokenizer/config.json`` of all of them."""

NOT_READ = re.compile(
    r"decoder\.quantizer\.\w+\.input_proj\.weight|encoder\.quantizer\.\w+\.output_proj\.weight|encoder\..*\.initialized"
    r"|encoder\.quantizer\.acoustic_residual_vector_quantizer\.layers\.(1[5-9]|2\d|30)\..*"  # codebooks that the talker does not know
    r"|encoder\.upsample\.conv\.weight"
)
"""Tensors of the codec that neither decoding nor encoding needs."""


@cache
def names(part: str) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a checkpoint (``0b6/base``) or of the ``codec``, as the reference's networks have them."""
    path = Path(__file__).parents[1] / "omni_qwen3_tts/golden/released_names.json.gz"
    return {name: tuple(shape) for name, shape in json.loads(gzip.decompress(path.read_bytes()))[part].items()}
