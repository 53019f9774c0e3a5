"""The declared interface of the Qwen-Image pipeline: parameters of images, and options. Imports no torch."""

from __future__ import annotations

from attrs import evolve

from omni_core.api import SEED, Interface, Parameter

SIZE = 16
"""Width and height are multiples of this: eight pixels a latent, two latents a position."""

OPTIONS = {
    "processes": "'separate' (a process per stage, the default) or 'one' (all stages in one process)",
    "dtype": "weights of every stage: auto (default: the checkpoint's; on a CPU float32), float32, bfloat16, float16",
    "gpu": "the number of a GPU for every stage, or none (default)",
    "max_batch_size": "requests that share a denoising step at most (default 8; on a CPU 2)",
    "max_running": "requests that are denoised at once (default 32)",
    "prompt_cache": "memory for encoded prompts, such as 256MiB (default); 0 keeps none",
    "adapters": "LoRA adapters by name: a mapping of names to files or folders",
}
"""The pipeline's options, each with the line that ``omni pipelines`` prints."""

PARAMETERS = [
    Parameter("negative_prompt", "string", "what the image should not show; a blank one still turns guidance on", " "),
    Parameter(
        "guidance_scale",
        "number",
        "how closely the image follows the prompt; 1 or less is no guidance",
        4.0,
        0,
        100,
        aliases=["true_cfg_scale"],
    ),
    Parameter("steps", "integer", "denoising steps", 50, 1, 1000, aliases=["num_inference_steps"]),
    Parameter("width", "integer", "width in pixels", 1024, SIZE, 4096, multiple_of=SIZE),
    Parameter("height", "integer", "height in pixels", 1024, SIZE, 4096, multiple_of=SIZE),
    Parameter("images", "integer", "images of the same prompt", 1, 1, 8, aliases=["n", "num_images_per_prompt"]),
    Parameter("partial_images", "integer", "previews that are streamed on the way", 0, 0, 8),
    Parameter(SEED, "integer", "seed of the noise; random by default", minimum=0, maximum=2**63 - 1),
]

INTERFACE = Interface(
    roles={"encoder": "encode", "image": "denoise", "decoder": "decode"},
    inputs=["text", "image"],
    outputs=["image"],
    params=PARAMETERS,
    warmup=[
        {
            "inputs": {"messages": [{"role": "user", "content": "A red circle."}]},
            "params": {"steps": 1, "width": 64, "height": 64},
        }
    ],
)


def with_adapters(interface: Interface, names: list[str]) -> Interface:
    """Return the interface of a pipeline that has these adapters."""
    if not names:
        return interface
    adapter = Parameter("adapter", "string", "the LoRA adapter to use; none by default", choices=sorted(names))
    return evolve(interface, params=[*interface.params, adapter])
