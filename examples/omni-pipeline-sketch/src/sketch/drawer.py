"""The stage that draws: a denoising loop whose network attends to the keys and values that the reader has handed over, by role."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen

from omni_core.api import ImageChunk, ImageResult, StagePayload
from omni_diffusion.denoising import DenoisingScheduler, Latents
from omni_diffusion.schedule import Schedules
from omni_torch.api import KeyValues
from sketch.checkpoint import read_checkpoint
from sketch.interface import IMAGE_GUIDANCE, TEXT_GUIDANCE
from sketch.network import Drawer, patches, unpatched

SCHEDULES = Schedules({"shift": 3.0})


@frozen(eq=False)
class Sketch(Latents):
    """A request on its way; ``guidance`` is that of the text."""

    image_guidance: float = IMAGE_GUIDANCE


class DrawerModel:
    """The network as an :class:`omni_diffusion.denoising.DiffusionModel`."""

    def __init__(self, network: Drawer, device: str) -> None:
        self.network, self.device = network.requires_grad_(False).to(device), device
        self.dims = network.dims

    def begin(self, payload: StagePayload) -> Sketch:
        params, patch = payload.request.params, self.dims.patch
        height, width = params.get("height", 32), params.get("width", 32)
        seed = params.get("seed")
        seed = secrets.randbits(53) if seed is None else seed
        noise = torch.randn((height, width, 3), generator=torch.Generator().manual_seed(seed))
        frame = (1, height // patch, width // patch)
        return Sketch(
            sample=patches(noise, patch).unsqueeze(0).to(self.device),
            schedule=SCHEDULES.make(params.get("steps", 8), frame[1] * frame[2]),
            conditions={role: self._rows(data["key_values"]) for role, data in payload.data.items()},
            guidance=params.get("text_guidance", TEXT_GUIDANCE),
            image_guidance=params.get("image_guidance", IMAGE_GUIDANCE),
            shapes=(frame,),
            wants_progress=payload.request.stream,
            extra={"seed": seed, "samples": params.get("samples", False)},
        )

    def use_adapter(self, name: str | None) -> None:
        """Do nothing: there are no adapters."""

    def predict(
        self,
        samples: torch.Tensor,
        timesteps: torch.Tensor,
        conditions: torch.Tensor,
        mask: torch.Tensor | None,
        shapes: Sequence[tuple[int, int, int]],
    ) -> torch.Tensor:
        count, longest, _ = conditions.shape
        lengths = torch.full((count,), longest, device=samples.device) if mask is None else mask.sum(1)
        cached, hidden = conditions[..., : -self.dims.hidden], conditions[..., -self.dims.hidden :]
        layers = cached.view(count, longest, self.dims.layers, 2, self.dims.kv_heads, self.dims.head_dim).unbind(2)
        past = [(each[:, :, 0], each[:, :, 1]) for each in layers]
        last = hidden[torch.arange(count, device=samples.device), lengths - 1]
        return self.network(samples, timesteps / 1000, past, last, lengths, shapes[0][1:])

    def _rows(self, given: KeyValues) -> torch.Tensor:
        """Return everything that was handed over of each position as one row, so that the loop can pad and batch it.

        The rows are a copy, so the relay's memory is free as soon as the request has begun.
        """
        assert given.hidden is not None
        both = torch.stack([given.keys, given.values], 1).permute(2, 0, 1, 3, 4)  # [positions, layers, 2, heads, width]
        return torch.cat([both.flatten(1), given.hidden], 1).to(self.device)


class Drawing(DenoisingScheduler):
    """Denoises with two guidances, and ends with pixels.

    Args:
        max_batch_size: requests that share a step at most.
    """

    def __init__(self, model: DrawerModel, max_batch_size: int = 8) -> None:
        super().__init__(model, max_batch_size)
        self._patch = model.dims.patch

    def guide(self, state: Latents, velocities: dict[str, torch.Tensor]) -> torch.Tensor:
        """Move away from the velocity without the text, then from that without the image."""
        assert isinstance(state, Sketch)
        velocity = velocities["all"]
        if "no_text" in velocities:
            velocity = velocities["no_text"] + state.guidance * (velocity - velocities["no_text"])
        if "no_image" in velocities:
            velocity = velocities["no_image"] + state.image_guidance * (velocity - velocities["no_image"])
        return velocity

    def progress(self, state: Latents) -> Any:
        return ImageChunk(state.step, state.schedule.steps) if state.wants_progress else None

    def finish(self, state: Latents) -> Any:
        found = super().finish(state)
        images = unpatched(found["latents"], state.shapes[0][1:], self._patch).cpu()
        if found["samples"]:
            return {"samples": images, "seed": found["seed"]}
        pixels = ((images / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
        return ImageResult(pixels.numpy(), seeds=[found["seed"]])


def create_drawer(model_path: str, device: str = "cpu", max_batch_size: int = 8) -> Drawing:
    """Build the stage."""
    dims, weights = read_checkpoint(model_path, "draw")
    network = Drawer(dims)
    network.load_state_dict(weights)
    SCHEDULES.make(2, 1)  # imports the schedule's library now, and not in the first request
    return Drawing(DrawerModel(network, device), max_batch_size)
