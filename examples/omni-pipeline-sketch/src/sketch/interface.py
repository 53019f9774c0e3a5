"""The parameters of a request, and the options of the pipeline. Imports no torch."""

from __future__ import annotations

from omni_core.api import SEED, Interface, Parameter

PATCH = 4
"""Pixels of a position, in each direction."""

READ_SIZE = 16
"""Pixels of an image that is read, in each direction; any other is resized."""

TEXT_GUIDANCE, IMAGE_GUIDANCE = 4.0, 2.0
"""The scales of guidance where a request names none."""

OPTIONS = {
    "processes": "'separate' (a process per stage, the default) or 'one' (both in one process)",
    "tp_size": "ranks of the stage that reads (default 1)",
    "max_batch_size": "requests that share a denoising step at most (default 8)",
}
"""The pipeline's options, each with the line that ``omni pipelines`` prints."""

PARAMETERS = [
    Parameter("text_guidance", "number", "how closely it follows the text; 1 or less: none", TEXT_GUIDANCE, 0, 100),
    Parameter("image_guidance", "number", "how closely it follows the image; 1 or less: none", IMAGE_GUIDANCE, 0, 100),
    Parameter("thoughts", "integer", "tokens that are written before drawing, and drawn from", 0, 0, 256),
    Parameter("temperature", "number", "how freely thoughts are chosen; 0: always the most probable token", 0.0, 0, 10),
    Parameter("steps", "integer", "denoising steps", 8, 1, 1000),
    Parameter("width", "integer", "width in pixels", 32, PATCH, 256, multiple_of=PATCH),
    Parameter("height", "integer", "height in pixels", 32, PATCH, 256, multiple_of=PATCH),
    Parameter("samples", "boolean", "return float32 samples in place of pixels", False),
    Parameter(SEED, "integer", "seed of the noise, and of thoughts; random by default", minimum=0, maximum=2**63 - 1),
]

INTERFACE = Interface(
    roles={"reader": "read", "image": "draw"}, inputs=["text", "image"], outputs=["image"], params=PARAMETERS
)
