"""Defines the dimensions of tiny checkpoints, and their config with every field of the released one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import frozen

SPEAKERS = {"chelsie": 0, "ethan": 1, "aiden": 2}
"""Speakers, as offsets from the first id after the codec markers."""


@frozen
class Shape:
    """The dimensions that vary between tiny checkpoints."""

    merges: int = 60
    hidden: int = 64
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    mrope_section: tuple[int, int, int] = (4, 2, 2)
    experts: int = 8
    experts_per_token: int = 2
    moe_intermediate: int = 32
    intermediate: int = 64
    accept_layer: int = 3
    deepstack: tuple[int, ...] = (0, 1)
    vision_hidden: int = 32
    vision_depth: int = 3
    audio_hidden: int = 32
    audio_layers: int = 2
    talker_hidden: int = 48
    talker_layers: int = 3
    talker_heads: int = 4
    talker_kv_heads: int = 2
    talker_experts: int = 4
    talker_experts_per_token: int = 2
    predictor_layers: int = 2
    code_groups: int = 4
    codebook: int = 64
    wav_hidden: int = 32
    wav_layers: int = 2
    wav_window: int = 12
    im_end_gain: float = 1.4
    decoder_dim: int = 48
    scale: int = 1


SHAPES = {
    "a": Shape(),
    "b": Shape(
        merges=100, hidden=48, layers=5, heads=6, kv_heads=1, head_dim=12, mrope_section=(2, 2, 2), experts=6,
        experts_per_token=3, accept_layer=4, deepstack=(0, 1, 2), vision_depth=4, talker_hidden=32, talker_kv_heads=1,
        code_groups=6, codebook=96, wav_window=8,
    ),
    "c": Shape(
        merges=20, hidden=32, layers=3, heads=4, kv_heads=4, head_dim=8, mrope_section=(2, 1, 1), experts=4,
        experts_per_token=1, accept_layer=2, deepstack=(1,), talker_hidden=32, talker_heads=2, talker_kv_heads=2,
        talker_experts=6, talker_experts_per_token=3, code_groups=8, codebook=48, wav_layers=3, im_end_gain=1.0,
    ),
    "mid": Shape(
        merges=200, hidden=512, layers=12, heads=8, kv_heads=4, head_dim=64, mrope_section=(12, 10, 10), experts=8,
        experts_per_token=2, moe_intermediate=384, intermediate=1536, accept_layer=6, deepstack=(0, 1), vision_hidden=256,
        vision_depth=6, audio_hidden=256, audio_layers=3, talker_hidden=512, talker_layers=6, talker_heads=8, talker_kv_heads=2,
        talker_experts=8, predictor_layers=5, code_groups=16, codebook=1024, wav_hidden=512, wav_layers=4, wav_window=72,
        decoder_dim=768, scale=4,
    ),
    "large": Shape(
        merges=200, hidden=1536, layers=16, heads=16, kv_heads=4, head_dim=64, mrope_section=(12, 10, 10), experts=8,
        experts_per_token=2, moe_intermediate=2048, intermediate=4096, accept_layer=8, deepstack=(0, 1), vision_hidden=256,
        vision_depth=6, audio_hidden=256, audio_layers=3, talker_hidden=1024, talker_layers=8, talker_heads=16, talker_kv_heads=2,
        talker_experts=8, predictor_layers=5, code_groups=16, codebook=2048, wav_hidden=512, wav_layers=4, wav_window=72,
        decoder_dim=768, scale=4,
    ),
}  # fmt: skip
"""Three tiny shapes that differ in every dimension that a loader or an attention could get wrong, one of about 270 M
parameters, and one of about 1.5 B whose code predictor has nearly the released dimensions.
"""


def codec_ids(dims: Shape) -> dict[str, int]:
    """Return the ids of the codec's markers, which follow the codes."""
    first = dims.codebook
    names = [
        "codec_pad_id",
        "codec_bos_id",
        "codec_eos_token_id",
        "codec_nothink_id",
        "codec_think_bos_id",
        "codec_think_eos_id",
    ]
    return {name: first + offset for offset, name in enumerate(names)}


def model_config(dims: Shape, ids: dict[str, int]) -> dict[str, Any]:
    """Return the whole config, with the fields of the released one that transformers' classes do not declare."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(dims.mrope_section), "interleaved": True}
    first_speaker = dims.codebook + 6
    half = dims.head_dim // 2
    assert sum(dims.mrope_section) == half, "mrope sections must cover half a head"
    tokens = {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "position_id_per_seconds": 13,
    }
    attention = {"head_dim": dims.head_dim, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768}
    return {
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "system_token_id": ids["system"],
        "user_token_id": ids["user"],
        "assistant_token_id": ids["assistant"],
        "enable_audio_output": True,
        "thinker_config": {
            **tokens,
            "user_token_id": ids["user"],
            "text_config": {
                **attention,
                "vocab_size": ids["vocabulary"],
                "hidden_size": dims.hidden,
                "intermediate_size": dims.intermediate,
                "num_hidden_layers": dims.layers,
                "num_attention_heads": dims.heads,
                "num_key_value_heads": dims.kv_heads,
                "num_experts": dims.experts,
                "num_experts_per_tok": dims.experts_per_token,
                "moe_intermediate_size": dims.moe_intermediate,
                "norm_topk_prob": True,
                "rope_parameters": rope,
                "mlp_only_layers": [],
            },
            "audio_config": {
                "num_mel_bins": 128,
                "encoder_layers": dims.audio_layers,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 2 * dims.audio_hidden,
                "d_model": dims.audio_hidden,
                "downsample_hidden_size": 8 * dims.scale,
                "n_window": 50,
                "n_window_infer": 400,
                "output_dim": dims.hidden,
                "conv_chunksize": 500,
            },
            "vision_config": {
                "depth": dims.vision_depth,
                "hidden_size": dims.vision_hidden,
                "intermediate_size": 2 * dims.vision_hidden,
                "num_heads": 4,
                "patch_size": 16,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "out_hidden_size": dims.hidden,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": list(dims.deepstack),
            },
        },
        "talker_config": {
            **tokens,
            **codec_ids(dims),
            "num_code_groups": dims.code_groups,
            "thinker_hidden_size": dims.hidden,
            "accept_hidden_layer": dims.accept_layer,
            "spatial_merge_size": 2,
            "speaker_id": {name: first_speaker + offset for name, offset in SPEAKERS.items()},
            "text_config": {
                **attention,
                "vocab_size": dims.codebook + 1024,
                "hidden_size": dims.talker_hidden,
                "intermediate_size": 2 * dims.talker_hidden,
                "num_hidden_layers": dims.talker_layers,
                "num_attention_heads": dims.talker_heads,
                "num_key_value_heads": dims.talker_kv_heads,
                "num_experts": dims.talker_experts,
                "num_experts_per_tok": dims.talker_experts_per_token,
                "moe_intermediate_size": 24 * dims.scale**2,
                "shared_expert_intermediate_size": 32 * dims.scale**2,
                "norm_topk_prob": True,
                "rope_parameters": rope,
                "mlp_only_layers": [],
            },
            "code_predictor_config": {
                **attention,
                "vocab_size": dims.codebook,
                "hidden_size": dims.talker_hidden,
                "intermediate_size": 3 * dims.talker_hidden,
                "num_hidden_layers": dims.predictor_layers,
                "num_attention_heads": dims.talker_heads,
                "num_key_value_heads": dims.talker_kv_heads,
                "num_code_groups": dims.code_groups,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            },
        },
        "code2wav_config": {
            "codebook_size": dims.codebook,
            "hidden_size": dims.wav_hidden,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "sliding_window": dims.wav_window,
            "intermediate_size": 2 * dims.wav_hidden,
            "num_hidden_layers": dims.wav_layers,
            "num_quantizers": dims.code_groups,
            "upsample_rates": [8, 5, 4, 3],
            "upsampling_ratios": [2, 2],
            "decoder_dim": dims.decoder_dim,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }


def complete_saved_config(folder: Path, dims: Shape) -> None:
    """Add the fields of the released config that transformers' classes do not declare and drop when saving."""
    path = folder / "config.json"
    saved = json.loads(path.read_text())
    saved["talker_config"]["spatial_merge_size"] = 2
    saved["talker_config"]["text_config"]["shared_expert_intermediate_size"] = 32 * dims.scale**2
    for section in (saved["thinker_config"]["text_config"], saved["talker_config"]["text_config"]):
        section["head_dim"] = dims.head_dim
    path.write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")
