"""The declared interface of the pipeline: parameters and options. Imports no torch."""

from __future__ import annotations

from omni_core.api import SEED, Interface, Parameter

SIDE = 256
"""Width and height of a picture in pixels, where a request does not say them."""

STEPS = 16
GUIDANCE = 1.5

OPTIONS = {
    "processes": "'one' (all stages in one process, the default) or 'separate' (a process per stage)",
    "max_batch_size": "requests that share a denoising step at most (default 8)",
    "prompt_cache": "memory for encoded prompts, such as 1MiB (default); 0 keeps none",
}
"""The pipeline's options, each with the line that ``omni pipelines`` prints."""

INTERFACE = Interface(
    roles={"encoder": "encode", "image": "denoise", "decoder": "decode"},
    inputs=["text", "image"],
    outputs=["image"],
    params=[
        Parameter("negative_prompt", "string", "what the picture should not show; nothing by default", ""),
        Parameter(
            "guidance_scale",
            "number",
            "how closely the picture follows the prompt; 1 or less is no guidance",
            GUIDANCE,
            0,
            20,
        ),
        Parameter("steps", "integer", "denoising steps", STEPS, 1, 200, aliases=["num_inference_steps"]),
        Parameter("width", "integer", "width in pixels, equal to the height", SIDE, 64, 1024, multiple_of=16),
        Parameter("height", "integer", "height in pixels, equal to the width", SIDE, 64, 1024, multiple_of=16),
        Parameter("images", "integer", "pictures of the same prompt", 1, 1, 8, aliases=["n"]),
        Parameter("partial_images", "integer", "previews that are streamed on the way", 0, 0, 8),
        Parameter(SEED, "integer", "seed of the noise; random by default", minimum=0, maximum=2**63 - 1),
    ],
    warmup=[{"inputs": {"messages": [{"role": "user", "content": "a red circle"}]}, "params": {"steps": 1}}],
)
