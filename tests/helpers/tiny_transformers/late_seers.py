"""Still more models that write text of pictures and videos."""

from __future__ import annotations

import transformers as T

from tiny_transformers.further_seers import MROPE
from tiny_transformers.seers import CLIP, IMAGE, IMAGE_ID, PIXELS, QWEN, QWEN_IDS, QWEN_MARKS, SMOL, seen

MINI = {
    "image_token": "<image>",
    "video_token": "<video>",
    "image_start_token": "<im>",
    "image_end_token": "</im>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<id>",
    "image_id_end_token": "</id>",
}
seen(
    "MiniCPMV4_6ForConditionalGeneration",
    "MiniCPMV4_6Processor",
    T.MiniCPMV4_6ImageProcessor(scale_resolution=112, max_slice_nums=1),
    "<image>",
    MINI,
    ids={"image_token_id": "<image>", "video_token_id": "<video>"},
    sizes={
        "insert_layer_id": 0,
        "image_size": 112,
        "text_config": {
            **MROPE,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
        "vision_config": {"num_hidden_layers": 2, "image_size": 112},
    },
    videos=("<video>", T.MiniCPMV4_6VideoProcessor(scale_resolution=112, max_slice_nums=1)),
)
ERNIE = {
    "image_token": "<|IMAGE|>",
    "image_start_token": "<|IS|>",
    "image_end_token": "<|IE|>",
    "video_token": "<|VIDEO|>",
    "video_start_token": "<|VS|>",
    "video_end_token": "<|VE|>",
}
seen(
    "Ernie4_5_VLMoeForConditionalGeneration",
    "Ernie4_5_VLMoeProcessor",
    T.Ernie4_5_VLMoeImageProcessor(**PIXELS),
    "<|IS|><|IMAGE|><|IE|>",
    ERNIE,
    ids={
        f"{kind}_{what}_id": ERNIE[f"{kind}_{what}"]
        for kind in ("image", "video")
        for what in ("token", "start_token", "end_token")
    },
    sizes={
        "text_config": {
            "moe_intermediate_size": [32, 32],
            "moe_num_experts": 4,
            "moe_k": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
            "mlp_layer_types": ["dense", "sparse"],
            "_own": ("moe_intermediate_size", "mlp_layer_types"),
        }
    },
    videos=("<|VS|><|VIDEO|><|VE|>", T.Ernie4_5_VLMoeVideoProcessor(**PIXELS, draw_on_frames=False)),
)
seen(
    "GraniteDoclingForConditionalGeneration",
    "GraniteDoclingProcessor",
    T.GraniteDoclingImageProcessor(size={"height": 32, "width": 32}, max_patches=2),
    "<image>",
    IMAGE,
    SMOL,
    ids=IMAGE_ID,
    sizes={"patch_size": 16, "image_size": 32, "scale_factor": 2, "out_hidden_size": 32},
    image_seq_len=1,
)
seen(
    "Lfm3VlForConditionalGeneration",
    "Lfm3VlProcessor",
    T.Qwen2VLImageProcessor(**PIXELS, patch_size=16),
    QWEN_MARKS["image"],
    QWEN,
    ids=QWEN_IDS,
    sizes={
        "patch_size": 16,
        "out_hidden_size": 32,
        "text_config": {"layer_types": ["conv", "full_attention"], "_own": ("layer_types",)},
    },
    videos=(QWEN_MARKS["video"], T.Qwen3VLVideoProcessor(**PIXELS, patch_size=16)),
)
seen("GitForCausalLM", "GitProcessor", T.CLIPImageProcessor(**CLIP), "", None, template=False)
seen(
    "Step3p7ForConditionalGeneration",
    "Step3p7Processor",
    T.Step3p7ImageProcessor(),
    "<im_patch>",
    {"image_token": "<im_patch>"},
    ids={"image_token_id": "<im_patch>"},
    sizes={"text_config": {"sliding_window": 16, "_own": ("sliding_window",)}},
)
