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
        transformers.CLIPImageProcessor(**CLIP),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )
    save(folder, "LlavaForConditionalGeneration", processor, SQUARE, {"image_token_id": "<image>"})


QWEN = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}
QWEN_MARKS = {kind: f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video")}
QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
PIXELS = {"size": {"shortest_edge": 56 * 56, "longest_edge": 56 * 56 * 4}}


def qwen_vl(folder: Path, name: str, family: str, **sizes: object) -> None:
    tokenizer = tokenizer_of(QWEN_MARKS, **QWEN)
    patch = {"patch_size": sizes.get("patch_size", 14)}
    processor = getattr(transformers, f"{family}Processor")(
        transformers.Qwen2VLImageProcessor(**PIXELS, **patch),
        tokenizer,
        (transformers.Qwen3VLVideoProcessor if family == "Qwen3VL" else transformers.Qwen2VLVideoProcessor)(
            **PIXELS, **patch
        ),
        chat_template=tokenizer.chat_template,
    )
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
    save(folder, name, processor, {"text_config": {"rope_parameters": rope}, **sizes}, QWEN_IDS)


@maker("Qwen2VLForConditionalGeneration")
def qwen2_vl(folder: Path) -> None:
    qwen_vl(folder, "Qwen2VLForConditionalGeneration", "Qwen2VL")


@maker("Qwen2_5_VLForConditionalGeneration")
def qwen2_5_vl(folder: Path) -> None:
    qwen_vl(
        folder,
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VL",
        out_hidden_size=32,
        fullatt_block_indexes=[1],
        window_size=28,
    )


@maker("Qwen3VLForConditionalGeneration")
def qwen3_vl(folder: Path) -> None:
    qwen_vl(
        folder,
        "Qwen3VLForConditionalGeneration",
        "Qwen3VL",
        patch_size=16,
        out_hidden_size=32,
        deepstack_visual_indexes=[0],
    )


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


def florence_pictures() -> object:
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

seen(
    "LlavaNextForConditionalGeneration",
    "LlavaNextProcessor",
    T.LlavaNextImageProcessor(**CLIP, image_grid_pinpoints=[[28, 56], [56, 28]]),
    "<image>",
    IMAGE,
    ids=IMAGE_ID,
    sizes={"image_grid_pinpoints": [[28, 56], [56, 28]]},
    **CLASSIC,
)
seen(
    "VipLlavaForConditionalGeneration",
    "LlavaProcessor",
    T.CLIPImageProcessor(**CLIP),
    "<image>",
    IMAGE,
    ids=IMAGE_ID,
    sizes={"vision_feature_layer": [-1, -2], "_own": ("vision_feature_layer",)},
    **CLASSIC,
)
seen(
    "LlavaOnevisionForConditionalGeneration",
    "LlavaOnevisionProcessor",
    T.LlavaOnevisionImageProcessor(**SIZE, image_grid_pinpoints=[[28, 56], [56, 28]]),
    "<image>",
    {"image_token": "<image>", "video_token": "<video>"},
    ids={**IMAGE_ID, "video_token_id": "<video>", "video_token_index": "<video>"},
    sizes={"image_grid_pinpoints": [[28, 56], [56, 28]]},
    videos=("<video>", T.LlavaOnevisionVideoProcessor(**SIZE)),
    num_image_tokens=4,
    vision_feature_select_strategy="full",
)
seen(
    "Gemma3ForConditionalGeneration",
    "Gemma3Processor",
    T.Gemma3ImageProcessor(**SIZE),
    "<start_of_image>",
    {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
    ids={
        "image_token_id": "<image_soft_token>",
        "image_token_index": "<image_soft_token>",
        "boi_token_index": "<start_of_image>",
        "eoi_token_index": "<end_of_image>",
    },
    sizes={"mm_tokens_per_image": 4, "sliding_window": 16},
    image_seq_length=4,
)
SMOL = (
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
    "<global-img>",
    "<video>",
    *(f"<row_{r}_col_{c}>" for r in range(1, 4) for c in range(1, 4)),
)
seen(
    "Idefics3ForConditionalGeneration",
    "Idefics3Processor",
    T.Idefics3ImageProcessor(size={"longest_edge": 56}, max_image_size={"longest_edge": 28}),
    "<image>",
    None,
    SMOL,
    ids=IMAGE_ID,
    sizes={"scale_factor": 2},
    image_seq_len=1,
)
seen(
    "SmolVLMForConditionalGeneration",
    "SmolVLMProcessor",
    T.SmolVLMImageProcessor(size={"longest_edge": 56}, max_image_size={"longest_edge": 28}),
    "<image>",
    None,
    SMOL,
    ids=IMAGE_ID,
    sizes={"scale_factor": 2},
    image_seq_len=1,
    videos=("<video>", T.SmolVLMVideoProcessor(size={"longest_edge": 28}, max_image_size={"longest_edge": 28})),
)
seen(
    "Idefics2ForConditionalGeneration",
    "Idefics2Processor",
    T.Idefics2ImageProcessor(size={"longest_edge": 28, "shortest_edge": 28}, do_image_splitting=False),
    "<image>",
    None,
    SMOL[:3],
    ids=IMAGE_ID,
    sizes={
        "perceiver_config": {
            "resampler_n_latents": 4,
            "resampler_depth": 1,
            "resampler_head_dim": 8,
            "resampler_n_heads": 4,
            "num_key_value_heads": 2,
        }
    },
    image_seq_len=4,
)
seen(
    "InternVLForConditionalGeneration",
    "InternVLProcessor",
    T.GotOcr2ImageProcessor(**SIZE, crop_to_patches=False),
    "<IMG_CONTEXT>",
    {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    },
    ids={"image_token_id": "<IMG_CONTEXT>"},
    sizes={"image_size": [28, 28], "patch_size": [14, 14], "downsample_ratio": 0.5},
    videos=("<video>", T.InternVLVideoProcessor(**SIZE)),
    image_seq_length=1,
)
seen(
    "PaliGemmaForConditionalGeneration",
    "PaliGemmaProcessor",
    _paligemma_pictures(),
    "",
    IMAGE,
    ids=IMAGE_ID,
    template=False,
    sizes={"projection_dim": 32, "_own": ("projection_dim",)},
)
PIXTRAL = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
seen(
    "Mistral3ForConditionalGeneration",
    "PixtralProcessor",
    T.PixtralImageProcessor(size={"longest_edge": 56}, patch_size={"height": 14, "width": 14}),
    "[IMG]",
    None,
    tuple(PIXTRAL.values()),
    ids={"image_token_id": "[IMG]", "image_token_index": "[IMG]"},
    sizes={"image_size": 56, "spatial_merge_size": 1},
    patch_size=14,
)
seen(
    "LightOnOcrForConditionalGeneration",
    "LightOnOcrProcessor",
    T.PixtralImageProcessor(size={"longest_edge": 56}, patch_size={"height": 14, "width": 14}),
    "[IMG]",
    PIXTRAL,
    ids={"image_token_id": "[IMG]"},
    sizes={"image_size": 56, "spatial_merge_size": 2},
    patch_size=14,
    spatial_merge_size=2,
)
AYA = ("<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE", "TILE_GLOBAL")
seen(
    "AyaVisionForConditionalGeneration",
    "AyaVisionProcessor",
    T.GotOcr2ImageProcessor(**SIZE, crop_to_patches=False),
    "<image>",
    None,
    AYA,
    ids={"image_token_id": "<|IMG_PATCH|>", "image_token_index": "<|IMG_PATCH|>"},
    sizes={"downsample_factor": 2, "alignment_intermediate_size": 32},
    patch_size=28,
    img_size=28,
    downsample_factor=1,
)
seen(
    "GotOcr2ForConditionalGeneration",
    "GotOcr2Processor",
    T.GotOcr2ImageProcessor(size={"height": 1024, "width": 1024}),
    "<img><imgpad></img>",
    None,
    ("<img>", "</img>", "<imgpad>", "<|im_start|>", "<|im_end|>"),
    ids={"image_token_id": "<imgpad>", "image_token_index": "<imgpad>"},
    sizes={"image_size": 1024, "patch_size": 16, "global_attn_indexes": []},
)
seen(
    "Cohere2VisionForConditionalGeneration",
    "Cohere2VisionProcessor",
    T.Cohere2VisionImageProcessor(**SIZE, crop_to_patches=False, patch_size=1),
    "<image>",
    {
        "image_token": "<image>",
        "boi_token": "<|START_OF_IMG|>",
        "eoi_token": "<|END_OF_IMG|>",
        "img_line_break_token": "<|IMG_LINE_BREAK|>",
    },
    ids=IMAGE_ID,
    sizes={"downsample_factor": 2, "alignment_intermediate_size": 32},
)
seen(
    "Blip2ForConditionalGeneration",
    "Blip2Processor",
    T.BlipImageProcessor(**SIZE),
    "",
    None,
    ids=IMAGE_ID,
    template=False,
    sizes={"num_query_tokens": 2, "word_embed_proj_dim": 32, "_own": ("num_query_tokens",)},
    num_query_tokens=2,
)
seen(
    "Ovis2ForConditionalGeneration",
    "Ovis2Processor",
    T.Ovis2ImageProcessor(**SIZE),
    "<image>",
    None,
    ("<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_END>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>"),
    image_seq_length=4,
    ids={
        "image_token_id": "<IMG_ATOM>",
        "visual_indicator_token_ids": ["<IMG_START>", "<IMG_END>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>"],
    },
)
