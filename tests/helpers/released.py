"""The config of the released Qwen3-Omni-30B-A3B-Instruct, as far as networks depend on it (second-hand: from printed copies)."""

from __future__ import annotations

from typing import Any

_ROPE = {"rope_type": "default", "interleaved": True, "mrope_section": [24, 20, 20]}

RELEASED: dict[str, Any] = {
    "im_start_token_id": 151644,
    "im_end_token_id": 151645,
    "system_token_id": 8948,
    "user_token_id": 872,
    "assistant_token_id": 77091,
    "tts_pad_token_id": 151671,
    "tts_bos_token_id": 151672,
    "tts_eos_token_id": 151673,
    "enable_audio_output": True,
    "thinker_config": {
        "audio_token_id": 151675,
        "image_token_id": 151655,
        "video_token_id": 151656,
        "audio_start_token_id": 151669,
        "audio_end_token_id": 151670,
        "vision_start_token_id": 151652,
        "position_id_per_seconds": 13,
        "user_token_id": 872,
        "text_config": {
            "vocab_size": 152064, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "intermediate_size": 768, "norm_topk_prob": True, "rope_theta": 1000000,
            "rope_scaling": _ROPE, "rms_norm_eps": 1e-6, "max_position_embeddings": 65536, "mlp_only_layers": [],
        },
        "audio_config": {
            "encoder_layers": 32, "d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "num_mel_bins": 128,
            "downsample_hidden_size": 480, "n_window": 50, "n_window_infer": 800, "output_dim": 2048,
        },
        "vision_config": {
            "depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304, "patch_size": 16,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 2048, "deepstack_visual_indexes": [8, 16, 24],
            "num_position_embeddings": 2304,
        },
    },
    "talker_config": {
        "audio_token_id": 151675, "image_token_id": 151655, "video_token_id": 151656, "audio_start_token_id": 151669,
        "vision_start_token_id": 151652, "position_id_per_seconds": 13, "spatial_merge_size": 2, "num_code_groups": 16,
        "thinker_hidden_size": 2048, "accept_hidden_layer": 24, "codec_pad_id": 2148, "codec_bos_id": 2149,
        "codec_eos_token_id": 2150, "codec_nothink_id": 2155, "codec_think_bos_id": 2156, "codec_think_eos_id": 2157,
        "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        "text_config": {
            "vocab_size": 3072, "hidden_size": 1024, "num_hidden_layers": 20, "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 6,
            "moe_intermediate_size": 384, "shared_expert_intermediate_size": 768, "intermediate_size": 2048,
            "norm_topk_prob": True, "rope_theta": 1000000, "rope_scaling": _ROPE, "mlp_only_layers": [],
        },
        "code_predictor_config": {
            "vocab_size": 2048, "hidden_size": 1024, "num_hidden_layers": 5, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "num_code_groups": 16, "rope_theta": 1000000,
        },
    },
    "code2wav_config": {
        "codebook_size": 2048, "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_key_value_heads": 16, "sliding_window": 72, "intermediate_size": 3072, "decoder_dim": 1536,
        "num_quantizers": 16, "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2],
    },
}  # fmt: skip
