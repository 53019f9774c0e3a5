"""More models that write text of pictures and videos, and those that read documents."""

from __future__ import annotations

from pathlib import Path

import transformers as T

from tiny_transformers import maker
from tiny_transformers.seers import (
    CLASSIC,
    CLIP,
    IMAGE,
    IMAGE_ID,
    PIXELS,
    QWEN,
    QWEN_IDS,
    QWEN_MARKS,
    SIZE,
    SQUARE,
    florence_pictures,
    seen,
)
from tiny_transformers.tiny import save, tokenizer_of

GLM = {"image_token": "<|image|>", "video_token": "<|video|>"}
GLM_MORE = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
GLM_MARK = "<|begin_of_image|><|image|><|end_of_image|>"
GLM_VIDEO = "<|begin_of_video|><|video|><|end_of_video|>"
GLM_IDS = {
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}
MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}}
for name, family in (
    ("Glm4vForConditionalGeneration", "Glm4v"),
    ("Glm46VForConditionalGeneration", "Glm46V"),
    ("GlmOcrForConditionalGeneration", "Glm46V"),
    ("Glm4vMoeForConditionalGeneration", "Glm4v"),
):
    seen(
        name,
        f"{family}Processor",
        getattr(T, f"{family}ImageProcessor")(size={"shortest_edge": 56 * 56 * 2, "longest_edge": 56 * 56 * 8}),
        GLM_MARK,
        GLM,
        GLM_MORE,
        ids=GLM_IDS,
        sizes={
            "out_hidden_size": 32,
            "text_config": {**MROPE, "num_attention_heads": 2 if "Moe" in name else 4},
            "n_group": 1,
            "topk_group": 1,
        },
        videos=(
            GLM_VIDEO,
            getattr(T, f"{family}VideoProcessor")(size={"shortest_edge": 56 * 56 * 2, "longest_edge": 56 * 56 * 32}),
        ),
    )
seen(
    "MllamaForConditionalGeneration",
    "MllamaProcessor",
    T.MllamaImageProcessor(size={"height": 28, "width": 28}, max_image_tiles=2),
    "<|image|>",
    None,
    ("<|image|>", "<|python_tag|>"),
    ids={"image_token_id": "<|image|>", "image_token_index": "<|image|>"},
    sizes={
        "max_num_tiles": 2,
        "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        "vision_output_dim": 64,
        "intermediate_layers_indices": [0],
        "num_global_layers": 1,
        "cross_attention_layers": [1],
        "attention_heads": 4,
        "_own": ("supported_aspect_ratios", "intermediate_layers_indices", "cross_attention_layers"),
    },
)
seen(
    "AriaForConditionalGeneration",
    "AriaProcessor",
    T.AriaImageProcessor(max_image_size=490, min_image_size=336),
    "<|img|>",
    {"image_token": "<|img|>"},
    ids={"image_token_id": "<|img|>", "image_token_index": "<|img|>"},
    sizes={
        "image_size": 490,
        "projector_patch_to_query_dict": {1225: 4, 4900: 8},
        "_own": ("projector_patch_to_query_dict",),
        "moe_num_experts": 4,
        "moe_topk": 2,
        "moe_num_shared_experts": 1,
    },
    size_conversion={490: 4, 980: 8},
)
seen(
    "Lfm2VlForConditionalGeneration",
    "Lfm2VlProcessor",
    T.Lfm2VlImageProcessor(
        tile_size=56, min_image_tokens=1, max_image_tokens=16, encoder_patch_size=14, do_image_splitting=False
    ),
    "<image>",
    {"image_token": "<image>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"},
    ("<|img_thumbnail|>",),
    ids=IMAGE_ID,
    sizes={"num_patches": 16, "block_multiple_of": 8, "full_attn_idxs": [1], "layer_types": ["conv", "full_attention"]},
)
seen(
    "DeepseekVLForConditionalGeneration",
    "DeepseekVLProcessor",
    T.DeepseekVLImageProcessor(**SIZE),
    "<image_placeholder>",
    {"image_token": "<image_placeholder>"},
    ids={"image_token_id": "<image_placeholder>"},
    num_image_tokens=4,
)
seen(
    "JanusForConditionalGeneration",
    "JanusProcessor",
    T.JanusImageProcessor(**SIZE),
    "<image_placeholder>",
    {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"},
    ids={"image_token_id": "<image_placeholder>"},
    sizes={
        "projection_dim": 32,
        "num_embeddings": 16,
        "latent_channels": 32,
        "base_channels": 32,
        "channel_multiplier": [1],
        "num_res_blocks": 1,
        "num_patches": 2,
        "vq_config": {"embed_dim": 8, "image_token_embed_dim": 32, "base_channels": 32, "num_patches": 2},
    },
    num_image_tokens=4,
)
seen(
    "PaddleOCRVLForConditionalGeneration",
    "PaddleOCRVLProcessor",
    T.PaddleOCRVLImageProcessor(size={"shortest_edge": 28 * 28, "longest_edge": 56 * 56 * 2}, patch_size=14),
    "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
    {"image_token": "<|IMAGE_PLACEHOLDER|>"},
    ("<|IMAGE_START|>", "<|IMAGE_END|>"),
    ids={
        "image_token_id": "<|IMAGE_PLACEHOLDER|>",
        "vision_start_token_id": "<|IMAGE_START|>",
        "vision_end_token_id": "<|IMAGE_END|>",
    },
    sizes={"text_config": MROPE},
)
L4 = ("<|image|>", "<|image_start|>", "<|image_end|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>")
seen(
    "Llama4ForConditionalGeneration",
    "Llama4Processor",
    T.Llama4ImageProcessor(**SIZE, max_patches=1),
    "<|image|>",
    None,
    L4,
    ids={
        "image_token_id": "<|patch|>",
        "image_token_index": "<|patch|>",
        "boi_token_index": "<|image_start|>",
        "eoi_token_index": "<|image_end|>",
    },
    sizes={
        "vision_output_dim": 32,
        "projector_input_dim": 32,
        "projector_output_dim": 32,
        "pixel_shuffle_ratio": 0.5,
        "attention_chunk_size": 64,
        "moe_layers": [1],
        "intermediate_size_mlp": 64,
        "vision_config": {"intermediate_size": 128},
    },
    patch_size=14,
)
seen(
    "QianfanOCRForConditionalGeneration",
    "QianfanOCRProcessor",
    T.GotOcr2ImageProcessor(**SIZE, crop_to_patches=False),
    "<image>",
    {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"},
    ("<image>",),
    ids={"image_token_id": "<IMG_CONTEXT>"},
    sizes={"image_size": [28, 28], "patch_size": [14, 14], "downsample_ratio": 0.5},
    image_seq_length=1,
)
seen(
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3VLProcessor",
    T.Qwen2VLImageProcessor(**PIXELS, patch_size=16),
    QWEN_MARKS["image"],
    QWEN,
    ids=QWEN_IDS,
    sizes={"text_config": MROPE, "patch_size": 16, "out_hidden_size": 32, "deepstack_visual_indexes": [0]},
    videos=(QWEN_MARKS["video"], T.Qwen3VLVideoProcessor(**PIXELS, patch_size=16)),
)
for name in ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"):
    seen(
        name,
        "Qwen3VLProcessor",
        T.Qwen2VLImageProcessor(**PIXELS, patch_size=16),
        QWEN_MARKS["image"],
        QWEN,
        ids=QWEN_IDS,
        sizes={
            "text_config": {**MROPE, "layer_types": ["linear_attention", "full_attention"]},
            "patch_size": 16,
            "out_hidden_size": 32,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
        videos=(QWEN_MARKS["video"], T.Qwen3VLVideoProcessor(**PIXELS, patch_size=16)),
    )


@maker("VisionEncoderDecoderModel")
def donut(folder: Path) -> None:
    encoder, decoder = T.ViTConfig(), T.TrOCRConfig(use_cache=True)
    config = T.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    tokenizer = tokenizer_of(None, "<s_read>")
    processor = T.TrOCRProcessor(T.ViTImageProcessor(**SIZE), tokenizer)
    sizes = {
        **SQUARE,
        "cross_attention_hidden_size": 32,
        "decoder": {"decoder_start_token_id": 257},
        "_own": ("decoder_start_token_id", "pad_token_id"),
        "decoder_start_token_id": 257,
        "pad_token_id": 256,
    }
    save(folder, "VisionEncoderDecoderModel", processor, sizes, config=config)


seen(
    "Florence2ForConditionalGeneration",
    "Florence2Processor",
    florence_pictures(),
    "",
    IMAGE,
    ids=IMAGE_ID,
    template=False,
    sizes={
        "vision_config": {
            "depths": [1, 1],
            "patch_size": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [3, 1],
            "patch_prenorm": [False, True],
            "embed_dim": [16, 32],
            "num_heads": [2, 4],
            "num_groups": [2, 4],
            "window_size": 7,
            "projection_dim": 32,
        },
        "patch_size": 14,
    },
    scale=0.7,
)
seen(
    "Pix2StructForConditionalGeneration",
    "Pix2StructProcessor",
    T.Pix2StructImageProcessor(max_patches=16, is_vqa=False),
    "",
    None,
    template=False,
    sizes={"patch_embed_hidden_size": 768, "seq_len": 64},
)
seen(
    "LlavaNextVideoForConditionalGeneration",
    "LlavaNextVideoProcessor",
    T.LlavaNextImageProcessor(**CLIP, image_grid_pinpoints=[[28, 56], [56, 28]]),
    "<image>",
    {"image_token": "<image>", "video_token": "<video>"},
    ids={**IMAGE_ID, "video_token_id": "<video>", "video_token_index": "<video>"},
    sizes={"image_grid_pinpoints": [[28, 56], [56, 28]]},
    videos=("<video>", T.LlavaNextVideoVideoProcessor(**CLIP)),
    **CLASSIC,
)
seen(
    "VideoLlavaForConditionalGeneration",
    "VideoLlavaProcessor",
    T.VideoLlavaImageProcessor(**CLIP),
    "<image>",
    {"image_token": "<image>", "video_token": "<video>"},
    ids={**IMAGE_ID, "video_token_id": "<video>", "video_token_index": "<video>"},
    videos=("<video>", T.VideoLlavaVideoProcessor(**CLIP)),
    **CLASSIC,
)
seen(
    "VideoLlama3ForConditionalGeneration",
    "VideoLlama3Processor",
    T.VideoLlama3ImageProcessor(min_pixels=28 * 28, max_pixels=28 * 28 * 8),
    "<image>",
    {"image_token": "<image>", "video_token": "<video>"},
    ids={"image_token_id": "<image>", "video_token_id": "<video>"},
    videos=("<video>", T.VideoLlama3VideoProcessor(min_pixels=28 * 28, max_pixels=28 * 28 * 8)),
)
MOLMO = (
    "<im_patch>",
    "<im_start>",
    "<im_end>",
    "<im_col>",
    "<low_res_im_start>",
    "<|image|>",
    "<|video|>",
    "<frame_start>",
    "<frame_end>",
    "<im_low>",
)
seen(
    "Molmo2ForConditionalGeneration",
    "Molmo2Processor",
    T.Molmo2ImageProcessor(**SIZE, max_crops=2, overlap_margins=[0, 0], pooling_size=[1, 1]),
    "<|image|>",
    {"image_token": "<|image|>", "video_token": "<|video|>"},
    MOLMO,
    ids={"image_patch_id": "<im_patch>", "image_token_id": "<im_patch>"},
    sizes={
        "image_size": [28, 28],
        "vision_config": {"num_position_embeddings": 4, "_own": ("num_position_embeddings",)},
        "adapter_config": {"vision_feature_layer": [1, 0], "text_hidden_size": 32, "_own": ("vision_feature_layer",)},
    },
    videos=("<|video|>", T.Molmo2VideoProcessor(**SIZE)),
)
seen(
    "InstructBlipForConditionalGeneration",
    "InstructBlipProcessor",
    T.BlipImageProcessor(**SIZE),
    "",
    None,
    ids=IMAGE_ID,
    template=False,
    sizes={"num_query_tokens": 2, "word_embed_proj_dim": 32, "_own": ("num_query_tokens",)},
    num_query_tokens=2,
    qformer_tokenizer=tokenizer_of(None),
)
seen(
    "HunYuanVLForConditionalGeneration",
    "HunYuanVLProcessor",
    T.HunYuanVLImageProcessor(min_pixels=64 * 64, max_pixels=64 * 64 * 2),
    "<im_start><image><im_end>",
    {**IMAGE, "image_start_token": "<im_start>", "image_end_token": "<im_end>", "image_newline_token": "<im_new>"},
    ids={
        **IMAGE_ID,
        "image_start_token_id": "<im_start>",
        "image_end_token_id": "<im_end>",
        "image_newline_token_id": "<im_new>",
    },
    sizes={
        "patch_size": 16,
        "out_hidden_size": 32,
        "text_hidden_size": 32,
        "text_config": {
            "head_dim": 8,
            "num_key_value_heads": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1, 1]},
            "_own": ("head_dim", "num_key_value_heads"),
        },
    },
)
seen(
    "Exaone4_5_ForConditionalGeneration",
    "Exaone4_5_Processor",
    T.Qwen2VLImageProcessor(**PIXELS),
    QWEN_MARKS["image"],
    QWEN,
    ids=QWEN_IDS,
    sizes={"out_hidden_size": 32, "fullatt_block_indexes": [1], "window_size": 28},
    videos=(QWEN_MARKS["video"], T.Qwen2VLVideoProcessor(**PIXELS)),
)
