"""The three stages: prompts and pictures to conditions, noise to latents, latents to pixels."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image, ImageOps
from torch.nn import functional

from omni_core.api import SimpleScheduler, StagePayload, parse_bytes
from omni_demo.image.checkpoint import read_checkpoint
from omni_demo.image.interface import GUIDANCE, STEPS
from omni_demo.image.pipeline import side_of
from omni_diffusion.content_cache import ContentCache, digest
from omni_diffusion.decoding import DecodingScheduler, split
from omni_diffusion.denoising import DenoisingScheduler, Latents
from omni_diffusion.pixels import from_bytes, to_bytes
from omni_diffusion.schedule import Schedules
from omni_media.api import LIMITS, MediaSource
from omni_media.api import images as pictures
from omni_torch.api import seeded_generator


class Encoder:
    """Encodes prompts, those of equal length in one batch, and the picture that is edited; keeps the latest results."""

    def __init__(self, model_path: str, cache_bytes: int) -> None:
        found = read_checkpoint(model_path, "text", "autoencoder")
        self._shape, self._text, self._autoencoder = found["shape"], found["text"], found["autoencoder"]
        self._cache: ContentCache[dict[str, torch.Tensor]] = ContentCache(
            cache_bytes, lambda value: sum(each.nbytes for each in value.values())
        )

    @torch.inference_mode()
    def __call__(self, payloads: list[StagePayload]) -> list[dict[str, torch.Tensor]]:
        """Return ``embeds``, ``[conditions, width]``, of each part, and ``given``, ``[1, positions, channels]``, of a picture."""
        keys = [digest(str(each.data["numbers"]), *_content(each.data["image"])) for each in payloads]
        found = {key: value for key in keys if (value := self._cache.get(key)) is not None}
        by_length: dict[int, dict[bytes, dict[str, Any]]] = {}
        for key, payload in zip(keys, payloads, strict=True):
            if key not in found:
                by_length.setdefault(len(payload.data["numbers"]), {})[key] = payload.data
        for parts in by_length.values():
            numbers = torch.tensor([part["numbers"] or [0] for part in parts.values()])
            for (key, part), embeds in zip(parts.items(), self._text(numbers), strict=True):
                found[key] = {"embeds": embeds.clone()}
                if part["image"] is not None:
                    found[key]["given"] = self._latents(pictures(part["image"])[0])
                self._cache.put(key, found[key])
        return [found[key] for key in keys]

    def _latents(self, image: Image.Image) -> torch.Tensor:
        side = self._shape.grid * self._shape.read
        image = ImageOps.fit(image, (side, side), Image.Resampling.BOX)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(1, side, side, 3)
        latents: torch.Tensor = self._autoencoder.encode(from_bytes(pixels))
        return latents.flatten(2).transpose(1, 2)


class Model:
    """The denoising network; see :class:`omni_diffusion.denoising.DiffusionModel`."""

    def __init__(self, model_path: str) -> None:
        found = read_checkpoint(model_path, "denoiser")
        self._shape, self._network = found["shape"], found["denoiser"]
        self._schedules = Schedules({"shift": 1.0})

    def begin(self, payload: StagePayload) -> Latents:
        parts, params = payload.data, payload.request.params
        grid, seed = self._shape.grid, params.get("seed")
        seed = secrets.randbits(53) if seed is None else seed  # as many bits as a number of JSON keeps
        steps, previews, images = params.get("steps", STEPS), params.get("partial_images", 0), params.get("images", 1)
        given, frame = parts["positive"].get("given"), (1, grid, grid)
        noise = torch.randn((images, grid**2, self._shape.channels), generator=seeded_generator(seed))
        return Latents(
            sample=noise,
            schedule=self._schedules.make(steps, grid**2),
            conditions={role: part["embeds"] for role, part in parts.items()},
            guidance=params.get("guidance_scale", GUIDANCE),
            shapes=(frame,) if given is None else (frame, frame),
            given=given,
            previews=frozenset(steps * (each + 1) // (previews + 1) for each in range(previews)),
            wants_progress=payload.request.stream,
            extra={"height": side_of(params), "width": side_of(params), "seed": seed},
        )

    def use_adapter(self, name: str | None) -> None:
        """Do nothing: there are none, and the interface offers none."""

    def predict(
        self,
        samples: torch.Tensor,
        timesteps: torch.Tensor,
        conditions: torch.Tensor,
        mask: torch.Tensor | None,
        shapes: Sequence[tuple[int, int, int]],
    ) -> torch.Tensor:
        positions = self._shape.grid**2
        noisy, given = samples[:, :positions], samples[:, positions:]
        levels = timesteps / 1000
        clean = self._network(noisy, levels, conditions, given if given.shape[1] else None)
        return (noisy - clean) / levels[:, None, None]


class Decoder(DecodingScheduler):
    """Draws the pictures of latents, and resizes them."""

    def __init__(self, model_path: str) -> None:
        super().__init__()
        found = read_checkpoint(model_path, "autoencoder")
        self._grid, self._autoencoder = found["shape"].grid, found["autoencoder"]

    @torch.inference_mode()
    def pixels(self, found: list[Any]) -> list[Any]:
        """Return the images; see :meth:`omni_diffusion.decoding.DecodingScheduler.pixels`."""
        latents = torch.cat([each["latents"] for each in found]).transpose(1, 2)
        images = self._autoencoder.decode(latents.unflatten(2, (self._grid, self._grid)))
        size = (found[0]["height"], found[0]["width"])
        if images.shape[2:] != size:
            images = functional.interpolate(images, size, mode="bicubic", antialias=True)
        return split(to_bytes(images).numpy(), found)


def create_encode(model_path: str, prompt_cache: str | int = "1MiB") -> SimpleScheduler:
    """Build the entry stage. See :data:`omni_demo.image.interface.OPTIONS`."""
    encoder = Encoder(model_path, parse_bytes(prompt_cache))
    return SimpleScheduler(lambda payload: encoder([payload])[0], encoder, 8)


def create_denoise(model_path: str, max_batch_size: int = 8) -> DenoisingScheduler:
    """Build the denoising stage. See :data:`omni_demo.image.interface.OPTIONS`."""
    return DenoisingScheduler(Model(model_path), max_batch_size)


def create_decode(model_path: str) -> Decoder:
    """Build the last stage."""
    return Decoder(model_path)


def _content(image: dict[str, Any] | None) -> list[bytes]:
    return [] if image is None else [MediaSource("image", image).content(LIMITS)]
