"""The entry stage: prompts, and images that are to be edited, to what the denoising network is conditioned on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from omni_core.api import InvalidRequestError, RequestTooLargeError, StagePayload, parse_bytes
from omni_diffusion.content_cache import ContentCache, digest
from omni_diffusion.pixels import pack
from omni_diffusion.qwen_image.autoencoder import Autoencoder
from omni_diffusion.qwen_image.checkpoint import Checkpoint, dtype_of
from omni_media.api import LIMITS, MediaSource, images
from omni_torch.api import check_length, longest_token

TEMPLATES = {
    False: (
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the"
        " objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
        34,
    ),
    True: (
        "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, background), then explain"
        " how the user's text instruction should alter or modify the image. Generate a new image that meets the user's requirements while"
        " maintaining consistency with the original input where appropriate.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|>"
        "<|vision_end|>{}<|im_end|>\n<|im_start|>assistant\n",
        64,
    ),
}
"""The prompt that the network was trained with, by whether an image is edited, and how many of its first tokens are left out."""

IMAGE = "<|image_pad|>"
"""The token that stands for one place of an image."""

LONGEST_PROMPT = 512
"""Tokens of a prompt, without the template's beginning."""

EDITED_AREA = 1024 * 1024
"""An image that is edited is resized to about so many pixels, in multiples of 32."""


class Encoder:
    """Encodes prompts, those of equal length in one batch, and keeps the latest results by their content.

    Args:
        cache_bytes: memory for results.
    """

    def __init__(self, checkpoint: Checkpoint, device: str, dtype: torch.dtype | None, cache_bytes: int) -> None:
        from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

        self._checkpoint, self._device = checkpoint, device
        # Else config.json chooses: it may name a kernel on the hub, which is code.
        kind = {"attn_implementation": "sdpa"} | ({} if dtype is None else {"dtype": dtype})
        self._network = checkpoint.network("text_encoder", Qwen2_5_VLForConditionalGeneration, device, **kind)
        self._dtype: torch.dtype = self._network.dtype
        self._template, self._skipped = TEMPLATES[checkpoint.edits]
        self._cache: ContentCache[dict[str, Any]] = ContentCache(
            cache_bytes, lambda value: sum(each.nbytes for each in value.values() if isinstance(each, torch.Tensor))
        )
        if checkpoint.edits:
            from diffusers.image_processor import VaeImageProcessor
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

            self._patches = checkpoint.load("processor", Qwen2VLImageProcessorPil)
            self._autoencoder = Autoencoder(checkpoint, device, self._dtype, "encoder")
            self._images = VaeImageProcessor(vae_scale_factor=self._autoencoder.scale)
        self._tokenizer = checkpoint.load("tokenizer", AutoTokenizer, trust_remote_code=False)
        self._longest = longest_token(self._tokenizer.backend_tokenizer)

    @torch.inference_mode()
    def __call__(self, payloads: list[StagePayload]) -> list[dict[str, Any]]:
        """Return ``{"embeds": [positions, width]}`` for each part, with ``given`` and ``shape`` of an image that is edited."""
        keys = [self._key(payload.data) for payload in payloads]
        found = {key: value for key in keys if (value := self._cache.get(key)) is not None}
        missing = {key: payload.data for key, payload in zip(keys, payloads, strict=True) if key not in found}
        made = self._edited(missing) if self._checkpoint.edits else self._texts(missing)
        for key, value in made.items():
            self._cache.put(key, value)
        return [(found | made)[key] for key in keys]

    def statistics(self) -> dict[str, float]:
        """Return counters of the cache."""
        return {"cache_hits": float(self._cache.hits), "cache_misses": float(self._cache.misses)}

    def _key(self, data: dict[str, Any]) -> bytes:
        image = data["image"]
        if self._checkpoint.edits == (image is None):
            raise InvalidRequestError(
                "messages: an image to edit is missing"
                if image is None
                else "messages: this checkpoint edits no images; leave the image out"
            )
        return (
            digest(data["text"]) if image is None else digest(data["text"], MediaSource("image", image).content(LIMITS))
        )

    def _texts(self, parts: dict[bytes, dict[str, Any]]) -> dict[bytes, dict[str, Any]]:
        """Encode texts; those of equal length together, so that none needs padding."""
        by_length: dict[int, dict[bytes, list[int]]] = {}
        for key, part in parts.items():
            check_length(part["text"], self._longest, LONGEST_PROMPT)
            ids = self._tokenizer(self._template.format(part["text"]))["input_ids"]
            self._check(len(ids))
            by_length.setdefault(len(ids), {})[key] = ids
        made: dict[bytes, dict[str, Any]] = {}
        for same in by_length.values():
            ids = torch.tensor(list(same.values()), device=self._device)
            hidden = self._hidden(input_ids=ids, attention_mask=torch.ones_like(ids))
            made |= {key: {"embeds": row.clone()} for key, row in zip(same, hidden, strict=True)}
        return made

    def _edited(self, parts: dict[bytes, dict[str, Any]]) -> dict[bytes, dict[str, Any]]:
        made = {}
        for key, part in parts.items():
            check_length(part["text"], self._longest, LONGEST_PROMPT)
            image = images(part["image"])[0]
            width, height = edited_size(*image.size)
            image = self._images.resize(image, height, width)
            patches = self._patches(images=[image], return_tensors="pt").to(self._device)
            places = int(patches["image_grid_thw"].prod()) // self._patches.merge_size**2
            text = self._template.format(part["text"])
            self._check(len(self._tokenizer(text)["input_ids"]))
            ids = self._tokenizer(text.replace(IMAGE, IMAGE * places, 1), return_tensors="pt")["input_ids"].to(
                self._device
            )
            # As diffusers 0.42 does, the positions of an image count like those of words: it passes no mm_token_type_ids.
            hidden = self._hidden(input_ids=ids, attention_mask=torch.ones_like(ids), **patches)
            pixels = self._images.preprocess(image, height, width).to(self._device, self._dtype)
            made[key] = {"embeds": hidden[0].clone(), **self._latents(pixels)}
        return made

    def _latents(self, pixels: torch.Tensor) -> dict[str, Any]:
        latents = self._autoencoder.encode(pixels)
        height, width = latents.shape[-2:]
        return {"given": pack(latents), "shape": [1, height // 2, width // 2]}

    def _hidden(self, **inputs: Any) -> torch.Tensor:
        output = self._network.model(**inputs, use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state[:, self._skipped :]
        return hidden

    def _check(self, tokens: int) -> None:
        if tokens - self._skipped > LONGEST_PROMPT:
            raise RequestTooLargeError(
                f"the prompt has {tokens - self._skipped} tokens; the longest may have {LONGEST_PROMPT}"
            )
        if tokens <= self._skipped:
            raise InvalidRequestError(
                f"the prompt has {tokens} tokens, of which the first {self._skipped} are left out"
            )


def edited_size(width: int, height: int) -> tuple[int, int]:
    """Return the width and height to which an image of this size is resized, of about :data:`EDITED_AREA` pixels."""
    ratio = width / height
    wanted = math.sqrt(EDITED_AREA * ratio)
    return round(wanted / 32) * 32, round(wanted / ratio / 32) * 32


def create_encoder(
    model_path: str,
    device: str = "cpu",
    dtype: str | None = None,
    prompt_cache: str | int = "256MiB",
    max_batch_size: int = 8,
) -> Any:
    """Build the stage. See :data:`omni_diffusion.qwen_image.interface.OPTIONS`."""
    from omni_core.api import SimpleScheduler

    encoder = Encoder(Checkpoint.open(model_path), device, dtype_of(dtype, device), parse_bytes(prompt_cache))
    return SimpleScheduler(_one(encoder), encoder, max_batch_size)


def _one(encoder: Encoder) -> Callable[[StagePayload], dict[str, Any]]:
    return lambda payload: encoder([payload])[0]
