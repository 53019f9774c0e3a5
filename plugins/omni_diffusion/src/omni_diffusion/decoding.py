"""The last stage of an image pipeline: latents to pixels, and previews on the way."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from attrs import define

from omni_core.api import ImageChunk, ImageResult, OmniRequest, StagePayload, StreamingScheduler


@define
class Picture:
    """A request in this stage: the latents, once they have come, then the pixels, uint8 ``[n, height, width, 3]``."""

    request_id: str
    latents: dict[str, Any] | None = None
    pixels: Any = None


class DecodingScheduler(StreamingScheduler[Picture]):
    """Decodes the latents of a request, and of its previews as they come, from a :class:`~omni_diffusion.denoising.DenoisingScheduler`.

    ``extra`` of its requests has ``height`` and ``width`` in pixels, and ``seed``.
    """

    @abstractmethod
    def pixels(self, found: list[Any]) -> list[Any]:
        """Return the images of latents of one size, each uint8 ``[n, height, width, 3]`` as a NumPy array.

        Args:
            found: results of the denoising stage: ``latents``, ``[n, positions, channels]``, and what is in ``extra``.
        """

    def new_state(self, request_id: str, request: OmniRequest | None) -> Picture:
        return Picture(request_id)

    def on_payload(self, state: Picture, payload: StagePayload) -> None:
        state.latents = payload.data

    def on_chunk(self, state: Picture, chunk: Any, metadata: dict[str, Any] | None) -> None:
        pixels = None if chunk["latents"] is None else self.pixels([chunk])[0]
        self.emit(state.request_id, ImageChunk(chunk["step"], chunk["steps"], pixels))

    def step(self, states: dict[str, Picture]) -> dict[str, BaseException]:
        """Decode what has come, images of equal size together."""
        by_size: dict[tuple[int, int], list[Picture]] = {}
        for state in states.values():
            if state.latents is not None and state.pixels is None:
                by_size.setdefault((state.latents["height"], state.latents["width"]), []).append(state)
        for same in by_size.values():
            for state, pixels in zip(same, self.pixels([each.latents for each in same]), strict=True):
                state.pixels = pixels
        return {}

    def finish(self, request_id: str, state: Picture) -> Any:
        assert state.latents is not None
        return ImageResult(state.pixels, seeds=[state.latents["seed"]])


def split(pixels: Any, found: list[Any]) -> list[Any]:
    """Return the rows of ``pixels`` that belong to each of several results of the denoising stage."""
    sizes = [len(each["latents"]) for each in found]
    return [pixels[sum(sizes[:index]) :][:size] for index, size in enumerate(sizes)]
