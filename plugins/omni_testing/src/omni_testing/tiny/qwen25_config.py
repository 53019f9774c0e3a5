"""Defines the dimensions of tiny checkpoints, and their config in the released layout."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen
class Shape:
    """The dimensions that vary between tiny checkpoints."""

    merges: int = 60
    hidden: int = 64
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    mrope_section: tuple[int, int, int] = (2, 3, 3)
    intermediate: int = 96
    vision_hidden: int = 32
    vision_depth: int = 3
    audio_hidden: int = 32
    audio_layers: int = 2
    talker_hidden: int = 48
    talker_layers: int = 2
    talker_heads: int = 3
    talker_kv_heads: int = 1
    codes: int = 64
    dit_hidden: int = 32
    dit_layers: int = 4
    dit_heads: int = 2
    block: int = 8
    mel: int = 16
    voice: int = 12
    wav_channels: int = 64
    end_gain: float = 0.5
    stop_gain: float = 1.4
    end_of_text_gain: float = 0.0

    @property
    def head_dim(self) -> int:
        """The width of an attention head of both decoders."""
        return 2 * sum(self.mrope_section)


SHAPES = {
    "a": Shape(end_of_text_gain=1.2),
    "b": Shape(
        merges=100, hidden=48, layers=4, heads=6, kv_heads=1, mrope_section=(2, 1, 1), intermediate=80, vision_depth=4, talker_hidden=64,
        talker_layers=3, talker_heads=4, talker_kv_heads=2, codes=96, dit_hidden=48, dit_layers=3, dit_heads=3, block=6, mel=20, voice=8,
    ),
    "c": Shape(
        merges=20, hidden=32, layers=2, heads=2, kv_heads=2, mrope_section=(4, 2, 2), intermediate=64, audio_layers=1, talker_hidden=32,
        talker_heads=2, talker_kv_heads=2, codes=48, dit_layers=2, block=4, mel=8, voice=16,
    ),
}  # fmt: skip
"""Three tiny shapes that differ in every dimension that a loader or an attention could get wrong."""

CODEC_MARKERS = ("pad", "start", "end", "unused", "mask")
"""The markers behind the codes, in the order of their released ids."""


def codec_ids(dims: Shape) -> dict[str, int]:
    """Return the ids of the talker's markers, which are behind the codes."""
    first = dims.codes + 4
    return {
        f"tts_codec_{name}_token_id": first + offset for offset, name in enumerate(CODEC_MARKERS) if name != "unused"
    }


def model_config(dims: Shape, ids: dict[str, int]) -> dict[str, Any]:
    """Return the whole config."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(dims.mrope_section)}
    tokens = {
        "audio_token_index": ids["<|AUDIO|>"],
        "image_token_index": ids["<|IMAGE|>"],
        "video_token_index": ids["<|VIDEO|>"],
        "vision_start_token_id": ids["<|vision_bos|>"],
        "vision_end_token_id": ids["<|vision_eos|>"],
        "audio_start_token_id": ids["<|audio_bos|>"],
        "audio_end_token_id": ids["<|audio_eos|>"],
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
    }
    return {
        "architectures": ["Qwen2_5OmniModel"],
        "enable_audio_output": True,
        "thinker_config": {
            **tokens,
            "user_token_id": ids["user"],
            "eos_token_id": ids["<|im_end|>"],
            "text_config": {
                "vocab_size": ids["vocabulary"],
                "hidden_size": dims.hidden,
                "head_dim": dims.head_dim,
                "intermediate_size": dims.intermediate,
                "num_hidden_layers": dims.layers,
                "num_attention_heads": dims.heads,
                "num_key_value_heads": dims.kv_heads,
                "max_position_embeddings": 32768,
                "rope_parameters": rope,
            },
            "audio_config": {
                "num_mel_bins": 128,
                "encoder_layers": dims.audio_layers,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 2 * dims.audio_hidden,
                "d_model": dims.audio_hidden,
                "n_window": 100,
                "output_dim": dims.hidden,
            },
            "vision_config": {
                "depth": dims.vision_depth,
                "hidden_size": dims.vision_hidden,
                "intermediate_size": 2 * dims.vision_hidden,
                "num_heads": 2,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "window_size": 56,
                "out_hidden_size": dims.hidden,
                "fullatt_block_indexes": [1],
            },
        },
        "talker_config": {
            **tokens,
            **codec_ids(dims),
            "tts_text_start_token_id": ids["<tts_text_bos>"],
            "tts_text_end_token_id": ids["<tts_text_eod>"],
            "tts_text_pad_token_id": ids["<tts_pad>"],
            "vocab_size": dims.codes + 16,
            "embedding_size": dims.hidden,
            "hidden_size": dims.talker_hidden,
            "head_dim": dims.head_dim,
            "intermediate_size": 2 * dims.talker_hidden,
            "num_hidden_layers": dims.talker_layers,
            "num_attention_heads": dims.talker_heads,
            "num_key_value_heads": dims.talker_kv_heads,
            "max_position_embeddings": 32768,
            "rope_parameters": rope,
        },
        "token2wav_config": {
            "dit_config": {
                "hidden_size": dims.dit_hidden,
                "num_hidden_layers": dims.dit_layers,
                "num_attention_heads": dims.dit_heads,
                "head_dim": 16,
                "emb_dim": 24,
                "block_size": dims.block,
                "look_ahead_layers": [1],
                "look_backward_layers": [0],
                "num_embeds": dims.codes + 1,
                "mel_dim": dims.mel,
                "enc_emb_dim": dims.voice,
                "enc_dim": 12,
                "enc_channels": [16, 16, 16, 32],
                "enc_kernel_sizes": [5, 3, 3, 1],
                "enc_dilations": [1, 2, 3, 1],
                "enc_attention_channels": 8,
                "enc_se_channels": 8,
            },
            "bigvgan_config": {
                "mel_dim": dims.mel,
                "upsample_initial_channel": dims.wav_channels,
            },
        },
    }
