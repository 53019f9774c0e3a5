"""Models that write text of pictures and videos."""

from __future__ import annotations

from pathlib import Path

import transformers
from tiny_transformers import maker
from tiny_transformers.tiny import save, tokenizer_of

SQUARE = {"image_size": 28, "patch_size": 14}
CLIP = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}


@maker("LlavaForConditionalGeneration")
def llava(folder: Path) -> None:
    tokenizer = tokenizer_of({"image": "<image>"}, image_token="<image>")
    processor = transformers.LlavaProcessor(
        transformers.CLIPImageProcessor(**CLIP), tokenizer, patch_size=14, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    save(folder, "LlavaForConditionalGeneration", processor, SQUARE, {"image_token_id": "<image>"})


QWEN = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"}
QWEN_MARKS = {kind: f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video")}
QWEN_IDS = {
    "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>", "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}  # fmt: skip
PIXELS = {"size": {"shortest_edge": 56 * 56, "longest_edge": 56 * 56 * 4}}


def qwen_vl(folder: Path, name: str, family: str, **sizes: object) -> None:
    tokenizer = tokenizer_of(QWEN_MARKS, **QWEN)
    patch = {"patch_size": sizes.get("patch_size", 14)}
    processor = getattr(transformers, f"{family}Processor")(
        transformers.Qwen2VLImageProcessor(**PIXELS, **patch), tokenizer,
        (transformers.Qwen3VLVideoProcessor if family == "Qwen3VL" else transformers.Qwen2VLVideoProcessor)(**PIXELS, **patch),
        chat_template=tokenizer.chat_template,
    )  # fmt: skip
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
    save(folder, name, processor, {"text_config": {"rope_parameters": rope}, **sizes}, QWEN_IDS)


@maker("Qwen2VLForConditionalGeneration")
def qwen2_vl(folder: Path) -> None:
    qwen_vl(folder, "Qwen2VLForConditionalGeneration", "Qwen2VL")


@maker("Qwen2_5_VLForConditionalGeneration")
def qwen2_5_vl(folder: Path) -> None:
    qwen_vl(folder, "Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VL", out_hidden_size=32, fullatt_block_indexes=[1], window_size=28)


@maker("Qwen3VLForConditionalGeneration")
def qwen3_vl(folder: Path) -> None:
    qwen_vl(folder, "Qwen3VLForConditionalGeneration", "Qwen3VL", patch_size=16, out_hidden_size=32, deepstack_visual_indexes=[0])


def seen(
    name: str,
    processor: str,
    pictures: object,
    mark: str,
    named: dict[str, str] | None = None,
    more: tuple[str, ...] = (),
    sizes: dict[str, object] | None = None,
    ids: dict[str, str] | None = None,
    videos: tuple[str, object] | None = None,
    template: bool = True,
    scale: float = 0.3,
    **settings: object,
) -> None:
    """Register the maker of an architecture.

    Args:
        processor: the name of its class; ``pictures`` and ``videos``: its parts.
        mark: what the chat template writes for a picture.
        named, more: special tokens.
        settings: of the processor.
    """

    @maker(name)
    def make(folder: Path) -> None:
        marks = {"image": mark} | ({"video": videos[0]} if videos else {})
        tokenizer = tokenizer_of(marks if template else None, *more, **(named or {}))
        parts: dict[str, object] = {"image_processor": pictures, "tokenizer": tokenizer, **settings}
        if videos:
            parts["video_processor"] = videos[1]
        if template:
            parts["chat_template"] = tokenizer.chat_template
        save(folder, name, getattr(transformers, processor)(**parts), {**SQUARE, **(sizes or {})}, ids, scale=scale)


T = transformers


def _florence_pictures() -> object:
    made = T.CLIPImageProcessor(size={"height": 56, "width": 56}, crop_size={"height": 56, "width": 56})
    made.image_seq_length = 50
    return made


def _paligemma_pictures() -> object:
    made = T.SiglipImageProcessor(**SIZE)
    made.image_seq_length = 4
    return made


IMAGE = {"image_token": "<image>"}
IMAGE_ID = {"image_token_id": "<image>", "image_token_index": "<image>"}
SIZE = {"size": {"height": 28, "width": 28}}
CLASSIC = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}

seen("LlavaNextForConditionalGeneration", "LlavaNextProcessor",
     T.LlavaNextImageProcessor(**CLIP, image_grid_pinpoints=[[28, 56], [56, 28]]), "<image>", IMAGE, ids=IMAGE_ID,
     sizes={"image_grid_pinpoints": [[28, 56], [56, 28]]}, **CLASSIC)  # fmt: skip
seen("VipLlavaForConditionalGeneration", "LlavaProcessor", T.CLIPImageProcessor(**CLIP), "<image>", IMAGE, ids=IMAGE_ID,
     sizes={"vision_feature_layer": [-1, -2], "_own": ("vision_feature_layer",)}, **CLASSIC)  # fmt: skip
seen("LlavaOnevisionForConditionalGeneration", "LlavaOnevisionProcessor",
     T.LlavaOnevisionImageProcessor(**SIZE, image_grid_pinpoints=[[28, 56], [56, 28]]), "<image>",
     {"image_token": "<image>", "video_token": "<video>"}, ids={**IMAGE_ID, "video_token_id": "<video>", "video_token_index": "<video>"},
     sizes={"image_grid_pinpoints": [[28, 56], [56, 28]]}, videos=("<video>", T.LlavaOnevisionVideoProcessor(**SIZE)), num_image_tokens=4,
     vision_feature_select_strategy="full")  # fmt: skip
seen("Gemma3ForConditionalGeneration", "Gemma3Processor", T.Gemma3ImageProcessor(**SIZE), "<start_of_image>",
     {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
     ids={"image_token_id": "<image_soft_token>", "image_token_index": "<image_soft_token>", "boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>"},
     sizes={"mm_tokens_per_image": 4, "sliding_window": 16}, image_seq_length=4)  # fmt: skip
SMOL = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", "<video>", *(f"<row_{r}_col_{c}>" for r in range(1, 4) for c in range(1, 4)))
seen("Idefics3ForConditionalGeneration", "Idefics3Processor",
     T.Idefics3ImageProcessor(size={"longest_edge": 56}, max_image_size={"longest_edge": 28}), "<image>", None, SMOL, ids=IMAGE_ID,
     sizes={"scale_factor": 2}, image_seq_len=1)  # fmt: skip
seen("SmolVLMForConditionalGeneration", "SmolVLMProcessor",
     T.SmolVLMImageProcessor(size={"longest_edge": 56}, max_image_size={"longest_edge": 28}), "<image>", None, SMOL, ids=IMAGE_ID,
     sizes={"scale_factor": 2}, image_seq_len=1,
     videos=("<video>", T.SmolVLMVideoProcessor(size={"longest_edge": 28}, max_image_size={"longest_edge": 28})))  # fmt: skip
seen("Idefics2ForConditionalGeneration", "Idefics2Processor",
     T.Idefics2ImageProcessor(size={"longest_edge": 28, "shortest_edge": 28}, do_image_splitting=False), "<image>", None, SMOL[:3],
     ids=IMAGE_ID, sizes={"perceiver_config": {"resampler_n_latents": 4, "resampler_depth": 1, "resampler_head_dim": 8, "resampler_n_heads": 4, "num_key_value_heads": 2}},
     image_seq_len=4)  # fmt: skip
seen("InternVLForConditionalGeneration", "InternVLProcessor", T.GotOcr2ImageProcessor(**SIZE, crop_to_patches=False), "<IMG_CONTEXT>",
     {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"},
     ids={"image_token_id": "<IMG_CONTEXT>"}, sizes={"image_size": [28, 28], "patch_size": [14, 14], "downsample_ratio": 0.5},
     videos=("<video>", T.InternVLVideoProcessor(**SIZE)), image_seq_length=1)  # fmt: skip
seen("PaliGemmaForConditionalGeneration", "PaliGemmaProcessor", _paligemma_pictures(), "", IMAGE, ids=IMAGE_ID, template=False,
     sizes={"projection_dim": 32, "_own": ("projection_dim",)})  # fmt: skip
PIXTRAL = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
seen("Mistral3ForConditionalGeneration", "PixtralProcessor",
     T.PixtralImageProcessor(size={"longest_edge": 56}, patch_size={"height": 14, "width": 14}), "[IMG]", None, tuple(PIXTRAL.values()),
     ids={"image_token_id": "[IMG]", "image_token_index": "[IMG]"}, sizes={"image_size": 56, "spatial_merge_size": 1}, patch_size=14)  # fmt: skip
seen("LightOnOcrForConditionalGeneration", "LightOnOcrProcessor",
     T.PixtralImageProcessor(size={"longest_edge": 56}, patch_size={"height": 14, "width": 14}), "[IMG]", PIXTRAL,
     ids={"image_token_id": "[IMG]"}, sizes={"image_size": 56, "spatial_merge_size": 2}, patch_size=14, spatial_merge_size=2)  # fmt: skip
AYA = ("<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE", "TILE_GLOBAL")
seen("AyaVisionForConditionalGeneration", "AyaVisionProcessor", T.GotOcr2ImageProcessor(**SIZE, crop_to_patches=False), "<image>", None, AYA,
     ids={"image_token_id": "<|IMG_PATCH|>", "image_token_index": "<|IMG_PATCH|>"}, sizes={"downsample_factor": 2, "alignment_intermediate_size": 32},
     patch_size=28, img_size=28, downsample_factor=1)  # fmt: skip
seen("GotOcr2ForConditionalGeneration", "GotOcr2Processor", T.GotOcr2ImageProcessor(size={"height": 1024, "width": 1024}), "<img><imgpad></img>", None,
     ("<img>", "</img>", "<imgpad>", "<|im_start|>", "<|im_end|>"), ids={"image_token_id": "<imgpad>", "image_token_index": "<imgpad>"},
     sizes={"image_size": 1024, "patch_size": 16, "global_attn_indexes": []})  # fmt: skip
seen("Cohere2VisionForConditionalGeneration", "Cohere2VisionProcessor", T.Cohere2VisionImageProcessor(**SIZE, crop_to_patches=False, patch_size=1), "<image>",
     {"image_token": "<image>", "boi_token": "<|START_OF_IMG|>", "eoi_token": "<|END_OF_IMG|>", "img_line_break_token": "<|IMG_LINE_BREAK|>"},
     ids=IMAGE_ID, sizes={"downsample_factor": 2, "alignment_intermediate_size": 32})  # fmt: skip
seen("Blip2ForConditionalGeneration", "Blip2Processor", T.BlipImageProcessor(**SIZE), "", None, ids=IMAGE_ID, template=False,
     sizes={"num_query_tokens": 2, "word_embed_proj_dim": 32, "_own": ("num_query_tokens",)}, num_query_tokens=2)  # fmt: skip
seen("Ovis2ForConditionalGeneration", "Ovis2Processor", T.Ovis2ImageProcessor(**SIZE), "<image>", None, ("<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_END>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>"),
     image_seq_length=4, ids={"image_token_id": "<IMG_ATOM>", "visual_indicator_token_ids": ["<IMG_START>", "<IMG_END>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>"]})  # fmt: skip

QWEN_PIXELS = {"size": {"shortest_edge": 56 * 56, "longest_edge": 56 * 56 * 4}}
GLM = {"image_token": "<|image|>", "video_token": "<|video|>"}
GLM_MORE = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
GLM_MARK = "<|begin_of_image|><|image|><|end_of_image|>"
GLM_VIDEO = "<|begin_of_video|><|video|><|end_of_video|>"
GLM_IDS = {"image_token_id": "<|image|>", "video_token_id": "<|video|>", "image_start_token_id": "<|begin_of_image|>", "image_end_token_id": "<|end_of_image|>",
           "video_start_token_id": "<|begin_of_video|>", "video_end_token_id": "<|end_of_video|>"}  # fmt: skip
MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}}
for name, family in (("Glm4vForConditionalGeneration", "Glm4v"), ("Glm46VForConditionalGeneration", "Glm46V"), ("GlmOcrForConditionalGeneration", "Glm46V"),
                     ("Glm4vMoeForConditionalGeneration", "Glm4v")):  # fmt: skip
    seen(name, f"{family}Processor", getattr(T, f"{family}ImageProcessor")(size={"shortest_edge": 56 * 56 * 2, "longest_edge": 56 * 56 * 8}), GLM_MARK, GLM, GLM_MORE, ids=GLM_IDS,
         sizes={"out_hidden_size": 32, "text_config": {**MROPE, "num_attention_heads": 2 if "Moe" in name else 4}, "n_group": 1, "topk_group": 1}, videos=(GLM_VIDEO, getattr(T, f"{family}VideoProcessor")(size={"shortest_edge": 56 * 56 * 2, "longest_edge": 56 * 56 * 32})))  # fmt: skip
seen("MllamaForConditionalGeneration", "MllamaProcessor", T.MllamaImageProcessor(size={"height": 28, "width": 28}, max_image_tiles=2), "<|image|>", None,
     ("<|image|>", "<|python_tag|>"), ids={"image_token_id": "<|image|>", "image_token_index": "<|image|>"},
     sizes={"max_num_tiles": 2, "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]], "vision_output_dim": 64, "intermediate_layers_indices": [0], "num_global_layers": 1,
            "cross_attention_layers": [1], "attention_heads": 4, "_own": ("supported_aspect_ratios", "intermediate_layers_indices", "cross_attention_layers")})  # fmt: skip
seen("AriaForConditionalGeneration", "AriaProcessor", T.AriaImageProcessor(max_image_size=490, min_image_size=336), "<|img|>", {"image_token": "<|img|>"},
     ids={"image_token_id": "<|img|>", "image_token_index": "<|img|>"}, sizes={"image_size": 490, "projector_patch_to_query_dict": {1225: 4, 4900: 8}, "_own": ("projector_patch_to_query_dict",),
     "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}, size_conversion={490: 4, 980: 8})  # fmt: skip
seen("Lfm2VlForConditionalGeneration", "Lfm2VlProcessor", T.Lfm2VlImageProcessor(tile_size=56, min_image_tokens=1, max_image_tokens=16, encoder_patch_size=14, do_image_splitting=False), "<image>", {"image_token": "<image>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"},
     ("<|img_thumbnail|>",), ids=IMAGE_ID, sizes={"num_patches": 16, "block_multiple_of": 8, "full_attn_idxs": [1], "layer_types": ["conv", "full_attention"]})  # fmt: skip
seen("DeepseekVLForConditionalGeneration", "DeepseekVLProcessor", T.DeepseekVLImageProcessor(**SIZE), "<image_placeholder>", {"image_token": "<image_placeholder>"},
     ids={"image_token_id": "<image_placeholder>"}, num_image_tokens=4)  # fmt: skip
seen("JanusForConditionalGeneration", "JanusProcessor", T.JanusImageProcessor(**SIZE), "<image_placeholder>",
     {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}, ids={"image_token_id": "<image_placeholder>"},
     sizes={"projection_dim": 32, "num_embeddings": 16, "latent_channels": 32, "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "num_patches": 2,
            "vq_config": {"embed_dim": 8, "image_token_embed_dim": 32, "base_channels": 32, "num_patches": 2}}, num_image_tokens=4)  # fmt: skip
seen("PaddleOCRVLForConditionalGeneration", "PaddleOCRVLProcessor", T.PaddleOCRVLImageProcessor(size={"shortest_edge": 28 * 28, "longest_edge": 56 * 56 * 2}, patch_size=14), "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", {"image_token": "<|IMAGE_PLACEHOLDER|>"}, ("<|IMAGE_START|>", "<|IMAGE_END|>"),
     ids={"image_token_id": "<|IMAGE_PLACEHOLDER|>", "vision_start_token_id": "<|IMAGE_START|>", "vision_end_token_id": "<|IMAGE_END|>"}, sizes={"text_config": MROPE})  # fmt: skip
L4 = ("<|image|>", "<|image_start|>", "<|image_end|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>")
seen("Llama4ForConditionalGeneration", "Llama4Processor", T.Llama4ImageProcessor(**SIZE, max_patches=1), "<|image|>", None, L4,
     ids={"image_token_id": "<|patch|>", "image_token_index": "<|patch|>", "boi_token_index": "<|image_start|>", "eoi_token_index": "<|image_end|>"},
     sizes={"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32, "pixel_shuffle_ratio": 0.5, "attention_chunk_size": 64, "moe_layers": [1], "intermediate_size_mlp": 64, "vision_config": {"intermediate_size": 128}}, patch_size=14)  # fmt: skip
seen("QianfanOCRForConditionalGeneration", "QianfanOCRProcessor", T.GotOcr2ImageProcessor(**SIZE, crop_to_patches=False), "<image>",
     {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}, ("<image>",),
     ids={"image_token_id": "<IMG_CONTEXT>"}, sizes={"image_size": [28, 28], "patch_size": [14, 14], "downsample_ratio": 0.5}, image_seq_length=1)  # fmt: skip
seen("Qwen3VLMoeForConditionalGeneration", "Qwen3VLProcessor", T.Qwen2VLImageProcessor(**PIXELS, patch_size=16), QWEN_MARKS["image"], QWEN, ids=QWEN_IDS,
     sizes={"text_config": MROPE, "patch_size": 16, "out_hidden_size": 32, "deepstack_visual_indexes": [0]}, videos=(QWEN_MARKS["video"], T.Qwen3VLVideoProcessor(**PIXELS, patch_size=16)))  # fmt: skip
for name in ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"):
    seen(name, "Qwen3VLProcessor", T.Qwen2VLImageProcessor(**PIXELS, patch_size=16), QWEN_MARKS["image"], QWEN, ids=QWEN_IDS,
         sizes={"text_config": {**MROPE, "layer_types": ["linear_attention", "full_attention"]}, "patch_size": 16, "out_hidden_size": 32, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
                "linear_num_key_heads": 2, "linear_num_value_heads": 4},
         videos=(QWEN_MARKS["video"], T.Qwen3VLVideoProcessor(**PIXELS, patch_size=16)))  # fmt: skip


@maker("VisionEncoderDecoderModel")
def donut(folder: Path) -> None:
    encoder, decoder = T.ViTConfig(), T.TrOCRConfig(use_cache=True)
    config = T.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    tokenizer = tokenizer_of(None, "<s_read>")
    processor = T.TrOCRProcessor(T.ViTImageProcessor(**SIZE), tokenizer)
    sizes = {**SQUARE, "cross_attention_hidden_size": 32, "decoder": {"decoder_start_token_id": 257}, "_own": ("decoder_start_token_id", "pad_token_id"), "decoder_start_token_id": 257, "pad_token_id": 256}
    save(folder, "VisionEncoderDecoderModel", processor, sizes, config=config)


seen("Florence2ForConditionalGeneration", "Florence2Processor", _florence_pictures(), "", IMAGE, ids=IMAGE_ID, template=False,
     sizes={"vision_config": {"depths": [1, 1], "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True], "embed_dim": [16, 32], "num_heads": [2, 4], "num_groups": [2, 4],
                              "window_size": 7, "projection_dim": 32}, "patch_size": 14}, scale=0.7)  # fmt: skip
seen("Pix2StructForConditionalGeneration", "Pix2StructProcessor", T.Pix2StructImageProcessor(max_patches=16, is_vqa=False), "", None, template=False,
     sizes={"patch_embed_hidden_size": 768, "seq_len": 64})  # fmt: skip
seen("LlavaNextVideoForConditionalGeneration", "LlavaNextVideoProcessor", T.LlavaNextImageProcessor(**CLIP, image_grid_pinpoints=[[28, 56], [56, 28]]), "<image>",
     {"image_token": "<image>", "video_token": "<video>"}, ids={**IMAGE_ID, "video_token_id": "<video>", "video_token_index": "<video>"},
     sizes={"image_grid_pinpoints": [[28, 56], [56, 28]]}, videos=("<video>", T.LlavaNextVideoVideoProcessor(**CLIP)), **CLASSIC)  # fmt: skip
seen("VideoLlavaForConditionalGeneration", "VideoLlavaProcessor", T.VideoLlavaImageProcessor(**CLIP), "<image>",
     {"image_token": "<image>", "video_token": "<video>"}, ids={**IMAGE_ID, "video_token_id": "<video>", "video_token_index": "<video>"},
     videos=("<video>", T.VideoLlavaVideoProcessor(**CLIP)), **CLASSIC)  # fmt: skip
seen("VideoLlama3ForConditionalGeneration", "VideoLlama3Processor", T.VideoLlama3ImageProcessor(min_pixels=28 * 28, max_pixels=28 * 28 * 8), "<image>", {"image_token": "<image>", "video_token": "<video>"},
     ids={"image_token_id": "<image>", "video_token_id": "<video>"}, videos=("<video>", T.VideoLlama3VideoProcessor(min_pixels=28 * 28, max_pixels=28 * 28 * 8)))  # fmt: skip
MOLMO = ("<im_patch>", "<im_start>", "<im_end>", "<im_col>", "<low_res_im_start>", "<|image|>", "<|video|>", "<frame_start>", "<frame_end>", "<im_low>")
seen("Molmo2ForConditionalGeneration", "Molmo2Processor", T.Molmo2ImageProcessor(**SIZE, max_crops=2, overlap_margins=[0, 0], pooling_size=[1, 1]), "<|image|>", {"image_token": "<|image|>", "video_token": "<|video|>"}, MOLMO,
     ids={"image_patch_id": "<im_patch>", "image_token_id": "<im_patch>"}, sizes={"image_size": [28, 28], "vision_config": {"num_position_embeddings": 4, "_own": ("num_position_embeddings",)}, "adapter_config": {"vision_feature_layer": [1, 0], "text_hidden_size": 32, "_own": ("vision_feature_layer",)}}, videos=("<|video|>", T.Molmo2VideoProcessor(**SIZE)))  # fmt: skip
seen("InstructBlipForConditionalGeneration", "InstructBlipProcessor", T.BlipImageProcessor(**SIZE), "", None, ids=IMAGE_ID, template=False,
     sizes={"num_query_tokens": 2, "word_embed_proj_dim": 32, "_own": ("num_query_tokens",)}, num_query_tokens=2, qformer_tokenizer=tokenizer_of(None))  # fmt: skip
seen("HunYuanVLForConditionalGeneration", "HunYuanVLProcessor", T.HunYuanVLImageProcessor(min_pixels=64 * 64, max_pixels=64 * 64 * 2), "<im_start><image><im_end>", {**IMAGE, "image_start_token": "<im_start>", "image_end_token": "<im_end>", "image_newline_token": "<im_new>"}, ids={**IMAGE_ID, "image_start_token_id": "<im_start>", "image_end_token_id": "<im_end>", "image_newline_token_id": "<im_new>"}, sizes={"patch_size": 16, "out_hidden_size": 32, "text_hidden_size": 32, "text_config": {"head_dim": 8, "num_key_value_heads": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1, 1]}, "_own": ("head_dim", "num_key_value_heads")}})
seen("Exaone4_5_ForConditionalGeneration", "Exaone4_5_Processor", T.Qwen2VLImageProcessor(**PIXELS), QWEN_MARKS["image"], QWEN, ids=QWEN_IDS,
     sizes={"out_hidden_size": 32, "fullatt_block_indexes": [1], "window_size": 28}, videos=(QWEN_MARKS["video"], T.Qwen2VLVideoProcessor(**PIXELS)))  # fmt: skip
