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
