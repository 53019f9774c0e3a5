"""Judges the pipeline: pictures of prompts and of edits that no training had, looked at by :mod:`.judge`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from attrs import frozen

from demo_training.image.judge import Pixels, shows
from demo_training.image.prompts import describe, instruct
from demo_training.image.scenes import Scene, draw_edit, draw_scene, render
from omni_core.api import AsyncPipe, OmniRequest, open_async
from omni_demo.image.pipeline import demo_image
from omni_diffusion.pixels import to_bytes

_SEED = 1000


@frozen(eq=False)
class Asked:
    """A prompt, the scene that its picture must show, and the picture that is edited."""

    prompt: str
    scene: Scene
    seed: int
    image: npt.NDArray[np.uint8] | None = None


def asked_single(random: np.random.Generator) -> Asked:
    """Return a prompt for one thing."""
    while len((scene := draw_scene(random)).things) > 1:
        pass
    return Asked(describe(scene, random), scene, int(random.integers(2**31)))


def asked_pair(random: np.random.Generator) -> Asked:
    """Return a prompt for two things in a combination that no training had."""
    scene = draw_scene(random, tested=True)
    return Asked(describe(scene, random), scene, int(random.integers(2**31)))


def asked_edit(kind: str) -> Callable[[np.random.Generator], Asked]:
    """Return a function that makes an edit of one kind, of a picture of a scene that no training had."""

    def asked(random: np.random.Generator) -> Asked:
        scene = draw_scene(random, tested=True)
        while (edit := draw_edit(scene, random)).kind != kind:
            pass
        image = to_bytes(render([scene], 256))[0].numpy()
        return Asked(instruct(scene, edit, random)[0], edit.apply(scene), int(random.integers(2**31)), image)

    return asked


ROWS: dict[str, Callable[[np.random.Generator], Asked]] = {
    "one shape": asked_single,
    "two shapes, held-out combinations": asked_pair,
    "edits: another colour": asked_edit("recolour"),
    "edits: another shape": asked_edit("reshape"),
    "edits: remove": asked_edit("remove"),
}
"""Makers of prompts, by row of the report."""


def sample(row: str, count: int) -> list[Asked]:
    """Return the same prompts every time."""
    random = np.random.default_rng(_SEED + list(ROWS).index(row))
    return [ROWS[row](random) for _ in range(count)]


def request_of(asked: Asked) -> OmniRequest:
    """Return the request for a picture."""
    content: list[dict[str, object]] = [{"type": "text", "text": asked.prompt}]
    if asked.image is not None:
        content.insert(0, {"type": "image", "image": asked.image})
    return OmniRequest({"messages": [{"role": "user", "content": content}]}, {"seed": asked.seed})


async def pictures(pipe: AsyncPipe, asked: list[Asked]) -> list[Pixels]:
    """Return the pictures of prompts, in the pipeline's default size."""
    results = await asyncio.gather(*(pipe.submit(request_of(each)) for each in asked))
    return [result["decode"].pixels[0] for result in results]


async def right_in(pipe: AsyncPipe, row: str, count: int) -> tuple[int, int, list[str]]:
    """Return how many pictures show what was asked, how many show what the next prompt asks (the control), and the wrong prompts."""
    asked = sample(row, count)
    made = [picture for begin in range(0, count, 16) for picture in await pictures(pipe, asked[begin : begin + 16])]
    right = [shows(picture, each.scene) for picture, each in zip(made, asked, strict=True)]
    swapped = sum(shows(picture, each.scene) for picture, each in zip(made, asked[1:] + asked[:1], strict=True))
    return sum(right), swapped, [each.prompt for each, good in zip(asked, right, strict=True) if not good]


async def report(model_path: str, count: int) -> str:
    """Return a table of how many of ``count`` pictures per row are right."""
    lines = ["| asked | right | control: judged by the next prompt |", "|---|---|---|"]
    wrong: list[str] = []
    async with open_async(demo_image(model_path)) as pipe:
        for row in ROWS:
            right, swapped, missed = await right_in(pipe, row, count)
            lines.append(f"| {row} | {right} of {count} | {swapped} |")
            wrong += [f"- {row}: {prompt}" for prompt in missed]
    return "\n".join([*lines, "", "Wrong:", "", *(wrong or ["none"]), ""])
