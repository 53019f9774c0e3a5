"""Models that write text of sound, pictures and videos."""

from __future__ import annotations

from pathlib import Path

import transformers as T

from tiny_transformers import maker
from tiny_transformers.listeners import MELS, whisper
from tiny_transformers.tiny import save, tokenizer_of

OMNI = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
OMNI_IDS = {
    f"{kind}_token_{end}": f"<|{kind.upper()}|>" for kind in ("image", "audio", "video") for end in ("id", "index")
} | {
    "vision_start_token_id": "<|vision_bos|>",
    "vision_end_token_id": "<|vision_eos|>",
    "audio_start_token_id": "<|audio_bos|>",
    "audio_end_token_id": "<|audio_eos|>",
}
PIXELS = {"size": {"shortest_edge": 56 * 56, "longest_edge": 56 * 56 * 4}}
ROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}


def thinker(name: str, processor: str, patch: int, video: object, **sizes: object) -> None:
    @maker(name)
    def make(folder: Path) -> None:
        marks = {"audio": "<|audio_bos|><|AUDIO|><|audio_eos|>"} | {
            kind: f"<|vision_bos|><|{kind.upper()}|><|vision_eos|>" for kind in ("image", "video")
        }
        tokenizer = tokenizer_of(marks, **OMNI)
        made = getattr(T, processor)(
            image_processor=T.Qwen2VLImageProcessor(**PIXELS, patch_size=patch),
            video_processor=video,
            feature_extractor=whisper(),
            tokenizer=tokenizer,
            chat_template=tokenizer.chat_template,
        )
        save(
            folder,
            name,
            made,
            {
                **MELS,
                "text_config": {"rope_parameters": ROPE},
                "output_dim": 32,
                "out_hidden_size": 32,
                "patch_size": patch,
                "_own": ("vision_start_token_id",),
                "vision_start_token_id": 0,
                **sizes,
            },
            OMNI_IDS,
        )


thinker(
    "Qwen2_5OmniThinkerForConditionalGeneration",
    "Qwen2_5OmniProcessor",
    14,
    T.Qwen2VLVideoProcessor(**PIXELS),
    fullatt_block_indexes=[1],
    window_size=28,
    n_window=50,
)
thinker(
    "Qwen3OmniMoeThinkerForConditionalGeneration",
    "Qwen3OmniMoeProcessor",
    16,
    T.Qwen2VLVideoProcessor(**PIXELS, patch_size=16),
    deepstack_visual_indexes=[0],
    downsample_hidden_size=16,
)

GEMMA = {
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
    "video_token": "<|video|>",
}
GEMMA_IDS = {
    "image_token_id": "<|image|>",
    "boi_token_id": "<|image>",
    "eoi_token_id": "<image|>",
    "audio_token_id": "<|audio|>",
    "boa_token_id": "<|audio>",
    "eoa_token_id": "<audio|>",
    "eoa_token_index": "<audio|>",
    "video_token_id": "<|video|>",
}


@maker("Gemma4ForConditionalGeneration")
def gemma4(folder: Path) -> None:
    tokenizer = tokenizer_of({"audio": "<|audio|>", "image": "<|image|>", "video": "<|video|>"}, **GEMMA)
    made = T.Gemma4Processor(
        T.Gemma4AudioFeatureExtractor(),
        T.Gemma4ImageProcessor(max_soft_tokens=70),
        tokenizer,
        T.Gemma4VideoProcessor(max_soft_tokens=70),
        chat_template=tokenizer.chat_template,
        image_seq_length=70,
    )
    save(
        folder,
        "Gemma4ForConditionalGeneration",
        made,
        {
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 320,
            "global_head_dim": 8,
            "num_kv_shared_layers": 0,
            "sliding_window": 16,
            "output_proj_dims": 32,
            "text_config": {
                "layer_types": ["sliding_attention", "full_attention"],
                "_own": ("global_head_dim",),
                "global_head_dim": 8,
            },
        },
        GEMMA_IDS,
        T.Gemma4Config(vision_config={}, audio_config={}),
    )


@maker("Gemma4UnifiedForConditionalGeneration")
def gemma4_unified(folder: Path) -> None:
    tokenizer = tokenizer_of({"audio": "<|audio|>", "image": "<|image|>", "video": "<|video|>"}, **GEMMA)
    made = T.Gemma4UnifiedProcessor(
        T.Gemma4UnifiedAudioFeatureExtractor(),
        T.Gemma4UnifiedImageProcessor(max_soft_tokens=70),
        tokenizer,
        T.Gemma4UnifiedVideoProcessor(max_soft_tokens=70),
        chat_template=tokenizer.chat_template,
        image_seq_length=70,
    )
    save(
        folder,
        "Gemma4UnifiedForConditionalGeneration",
        made,
        {
            "num_kv_shared_layers": 0,
            "sliding_window": 16,
            "mm_embed_dim": 32,
            "output_proj_dims": 32,
            "text_config": {
                "layer_types": ["sliding_attention", "full_attention"],
                "_own": ("global_head_dim",),
                "global_head_dim": 8,
            },
        },
        GEMMA_IDS,
        T.Gemma4UnifiedConfig(vision_config={}, audio_config={}),
    )


@maker("NemotronH_Omni_Reasoning_V3")
def nemotron_omni(folder: Path) -> None:
    tokens = ("<image>", "<video>", "<so_embedding>", "<so_start>", "<so_end>", "<img>", "</img>")
    tokenizer = tokenizer_of({"audio": "<so_embedding>", "image": "<image>", "video": "<video>"}, *tokens)
    made = T.NemotronH_Omni_Reasoning_V3Processor(
        T.NemotronH_Omni_Reasoning_V3ImageProcessor(patch_size=16, min_num_patches=4, max_num_patches=16),
        T.NemotronH_Omni_Reasoning_V3VideoProcessor(
            patch_size=16, video_target_num_patches=16, norm_mean=[0.5] * 3, norm_std=[0.5] * 3
        ),
        tokenizer,
        T.ParakeetFeatureExtractor(feature_size=16),
        chat_template=tokenizer.chat_template,
    )
    save(
        folder,
        "NemotronH_Omni_Reasoning_V3",
        made,
        {
            "vision_hidden_size": 32,
            "projector_hidden_size": 32,
            "image_size": 64,
            "max_img_size": 128,
            "num_key_value_heads": 4,
            "num_mel_bins": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 2,
        },
        {"image_token_id": "<image>", "video_token_id": "<video>", "audio_token_id": "<so_embedding>"},
    )
