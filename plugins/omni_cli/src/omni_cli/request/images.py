"""Images of a reply: the steps on the way, the file they are written to, and what the JSON document says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

from omni_cli.request.out import is_image
from omni_core.api import AsyncPipe, ImageChunk, ImageResult, Interface, OmniRequest


class StepScreen(Protocol):
    """The display of steps."""

    def step(self, done: int, steps: int) -> None:
        """Show how far an image is."""


class StepsShown:
    """A pipe whose replies show their steps as they pass.

    Attributes:
        interface: that of the pipeline.
    """

    def __init__(self, pipe: AsyncPipe, screen: StepScreen) -> None:
        self.interface: Interface | None = pipe.interface
        self._pipe, self._screen = pipe, screen

    async def stream(self, request: OmniRequest) -> AsyncIterator[Any]:
        """Send a request; its results as they come."""
        async for event in self._pipe.stream(request):
            if isinstance(event.data, ImageChunk):
                self._screen.step(event.data.step, event.data.steps)
            yield event


def as_document(image: ImageResult) -> dict[str, Any]:
    """Return what the JSON document of a reply says of its images."""
    images, height, width, _ = image.pixels.shape
    return {"width": width, "height": height, "images": images, "seeds": image.seeds}


def save_images(pixels: Any, out: Path) -> list[Path]:
    """Write images, uint8 ``[n, height, width, 3]``; several are numbered ``FILE-1.png``, ``FILE-2.png``. Returns their paths.

    Numbers whose files hold something else than images are left out, so that nothing of another kind is written over.
    """
    from PIL import Image  # check_image_out has looked for it

    if len(pixels) == 1:
        names = [out]
    else:
        numbered = (out.with_stem(f"{out.stem}-{number}") for number in count(1))
        free = (each for each in numbered if not each.is_dir() and (not each.is_file() or is_image(each)))
        names = list(islice(free, len(pixels)))
    for name, image in zip(names, pixels, strict=True):
        Image.fromarray(image).save(name)
    return names
