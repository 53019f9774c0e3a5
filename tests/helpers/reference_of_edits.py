"""Run by the tests in a process that has torchvision, which the reference's processor imports: latents of diffusers' editing pipeline."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

_LIBRARY = torch.library.Library("torchvision", "DEF")


def main(folder: str, image: str, asked: str, area_of_edits: str, out: str) -> None:
    for name in (
        "nms",
        "qnms",
    ):  # a build of torch without CUDA wants the schemas of operators that torchvision brings for others
        _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.path.append(os.environ["OMNI_ORACLE_PACKAGES"])
    import torchvision  # noqa: F401
    from diffusers import QwenImageEditPipeline
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit as module
    from PIL import Image
    from transformers import AutoTokenizer, Qwen2VLProcessor, Qwen2VLVideoProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    dimensions = module.calculate_dimensions  # of a megapixel; fewer are enough here
    module.calculate_dimensions = lambda area, ratio: dimensions(int(area_of_edits), ratio)
    request: dict[str, Any] = json.loads(asked)
    processor = Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessorPil.from_pretrained(f"{folder}/processor"),
        tokenizer=AutoTokenizer.from_pretrained(f"{folder}/tokenizer"),
        video_processor=Qwen2VLVideoProcessor(patch_size=14),
    )
    pipe = QwenImageEditPipeline.from_pretrained(folder, processor=processor)
    pipe.set_progress_bar_config(disable=True)
    made = pipe(
        image=Image.open(image),
        prompt=request["prompt"],
        negative_prompt=" ",
        true_cfg_scale=request["guidance_scale"],
        width=request["width"],
        height=request["height"],
        num_inference_steps=request["steps"],
        generator=torch.Generator().manual_seed(request["seed"]),
        output_type="latent",
    )
    torch.save(made.images, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
