"""The pipeline ``demo-image`` as a config, and the parts of its requests. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from omni_core.api import InvalidRequestError, PipelineConfig, StageConfig, StagePayload
from omni_demo.image.interface import GUIDANCE, INTERFACE, OPTIONS, SIDE
from omni_demo.image.words import numbers_of
from omni_diffusion.parts import parts as parts_of
from omni_torch.api import check_options

CHECKPOINT = Path(__file__).parent / "checkpoint"
"""The checkpoint's folder: package data."""


class Options(TypedDict, total=False):
    """Options of the pipeline; :data:`omni_demo.image.interface.OPTIONS` describes them."""

    processes: Literal["separate", "one"]
    max_batch_size: int
    prompt_cache: str | int


def default_model() -> tuple[str, str]:
    """Return the checkpoint of ``omni run demo-image`` without ``--model``, and a notice that describes it."""
    notice = (
        "The demo draws circles, squares, triangles and stars in seven colours, one or two; "
        "`omni run qwen-image --model ...` takes a real checkpoint."
    )
    return str(CHECKPOINT), notice


def demo_image(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """A prompt in, or a picture and an instruction; a picture out.

    Raises:
        ConfigError: an unknown option, or a value that it cannot have.
    """
    given: dict[str, Any] = {**options}
    check_options(given, OPTIONS, processes=("separate", "one"))
    separate = given.get("processes", "one") == "separate"

    def stage(name: str, *arguments: str, **more: Any) -> StageConfig:
        return StageConfig(
            name=name,
            factory=f"omni_demo.image.stages:create_{name}",
            factory_args={each: given[each] for each in arguments if each in given},
            process=name if separate else "pipeline",
            **more,
        )

    return PipelineConfig(
        model_path=model_path,
        name="demo-image",
        stages=[
            stage("encode", "prompt_cache", expand_fn="omni_demo.image.pipeline:parts", next="denoise"),
            stage("denoise", "max_batch_size", next="decode", stream_to=["decode"]),
            stage("decode", terminal=True),
        ],
        interface=INTERFACE,
    )


def parts(payload: StagePayload) -> dict[str, Any]:
    """Return prompt and negative prompt by role, each with the numbers of its words.

    Raises:
        InvalidRequestError: a word that the model does not know, no text, several pictures, or a picture that is not square.
    """
    params = payload.request.params
    width, height = params.get("width"), params.get("height")
    if width is not None and height is not None and width != height:
        raise InvalidRequestError(f"params.width: pictures are square; the width is {width}, the height {height}")
    found = parts_of(payload, GUIDANCE, "")
    for part in found.values():
        part["numbers"] = numbers_of(part["text"])
    return found


def side_of(params: dict[str, Any]) -> int:
    """Return the width and height of the picture that a request asks for."""
    return int(params.get("width") or params.get("height") or SIDE)
