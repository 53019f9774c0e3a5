"""The denoising stage: diffusers' Qwen-Image transformer in the loop of :mod:`omni_diffusion`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from omni_core.api import ConfigError, StagePayload, expanded
from omni_diffusion.denoising import DenoisingScheduler, Latents
from omni_diffusion.pixels import pack
from omni_diffusion.qwen_image.checkpoint import Checkpoint, dtype_of
from omni_diffusion.schedule import Schedules
from omni_torch.api import load_checked, pack_linears, seeded_generator

PIXELS = 16
"""Pixels of a position, in each direction."""


class QwenImageModel:
    """The network with its noise schedules and adapters; see :class:`omni_diffusion.denoising.DiffusionModel`.

    Args:
        adapters: files or folders of LoRA adapters by name.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: str, dtype: torch.dtype | None, adapters: Mapping[str, str] | None = None
    ) -> None:
        from diffusers import QwenImageTransformer2DModel

        kind = {} if dtype is None else {"torch_dtype": dtype}
        self.network = checkpoint.network("transformer", QwenImageTransformer2DModel, device, **kind)
        if self.network.config.guidance_embeds:
            raise ConfigError(f"{checkpoint.folder}/transformer/config.json: guidance_embeds is not supported")
        self._device, self._dtype = device, self.network.dtype
        self._schedules = Schedules(checkpoint.scheduler())
        self._channels = self.network.config.in_channels // 4
        self._adapters = list(adapters or {})
        self._adapter: str | None = None
        for name, path in (adapters or {}).items():
            self._load_adapter(name, path)
        if self._adapters:
            self.network.disable_adapters()
        else:
            pack_linears(self.network)  # adapters read the weights, which packed layers do not have

    def begin(self, payload: StagePayload) -> Latents:
        parts, params = payload.data, payload.request.params
        given, shape = parts["positive"].get("given"), parts["positive"].get("shape")
        size = (1024, 1024) if shape is None else (PIXELS * shape[1], PIXELS * shape[2])
        height, width = params.get("height", size[0]), params.get("width", size[1])
        frame = (1, height // PIXELS, width // PIXELS)
        seed = params.get("seed")
        seed = secrets.randbits(53) if seed is None else seed  # as many bits as a number of JSON keeps
        generator = seeded_generator(seed)
        images = params.get("images", 1)
        noise = torch.randn(
            (images, 1, self._channels, 2 * frame[1], 2 * frame[2]), generator=generator, dtype=self._dtype
        )
        steps = params.get("steps", 50)
        previews = params.get("partial_images", 0)
        return Latents(
            sample=pack(noise[:, 0]).to(self._device),
            schedule=self._schedules.make(steps, frame[1] * frame[2]),
            conditions={role: part["embeds"].to(self._device, self._dtype) for role, part in parts.items()},
            guidance=params.get("guidance_scale", 4.0),
            shapes=(frame,) if shape is None else (frame, (shape[0], shape[1], shape[2])),
            given=None if given is None else given.to(self._device, self._dtype),
            adapter=params.get("adapter"),
            previews=frozenset(steps * (each + 1) // (previews + 1) for each in range(previews)),
            wants_progress=payload.request.stream,
            extra={"height": height, "width": width, "seed": seed},
        )

    def use_adapter(self, name: str | None) -> None:
        if name == self._adapter:
            return
        if name is None:
            self.network.disable_adapters()
        else:
            known = next(each for each in self._adapters if each.casefold() == name.casefold())
            self.network.set_adapters([known])
            self.network.enable_adapters()
        self._adapter = name

    def predict(
        self,
        samples: torch.Tensor,
        timesteps: torch.Tensor,
        conditions: torch.Tensor,
        mask: torch.Tensor | None,
        shapes: Sequence[tuple[int, int, int]],
    ) -> torch.Tensor:
        output: tuple[torch.Tensor] = self.network(
            hidden_states=samples,
            timestep=timesteps.to(samples.dtype) / 1000,
            encoder_hidden_states=conditions,
            encoder_hidden_states_mask=mask,
            img_shapes=[list(shapes)] * len(samples),
            return_dict=False,
        )
        return output[0]

    def _load_adapter(self, name: str, path: str) -> None:
        where = f"factory_args.adapters.{name}"
        try:
            import peft  # noqa: F401 - diffusers loads adapters by it
        except ImportError:
            raise ConfigError(f"{where}: peft is not installed: pip install 'omni-diffusion[adapters]'") from None
        found = Path(expanded(path))
        if not found.exists():
            raise ConfigError(f"{where}: there is no file or folder {path}")
        folder, file = (found, None) if found.is_dir() else (found.parent, found.name)
        from diffusers.loaders.lora_pipeline import QwenImageLoraLoaderMixin as Loader

        weights = load_checked(
            f"{where}: {path}", lambda: Loader.lora_state_dict(str(folder), weight_name=file, use_safetensors=True)
        )
        try:
            self.network.load_lora_adapter(weights, adapter_name=name)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ConfigError(f"{where}: {path} is no adapter of this network: {error}") from error
        if name not in getattr(self.network, "peft_config", {}):
            raise ConfigError(f"{where}: {path} has no weights for this network")


def create_denoiser(
    model_path: str,
    device: str = "cpu",
    dtype: str | None = None,
    max_batch_size: int | None = None,
    max_running: int | None = None,
    adapters: dict[str, str] | None = None,
) -> DenoisingScheduler:
    """Build the stage. See :data:`omni_diffusion.qwen_image.interface.OPTIONS`."""
    model = QwenImageModel(Checkpoint.open(model_path), device, dtype_of(dtype, device), adapters)
    if max_batch_size is None:
        max_batch_size = 2 if torch.device(device).type == "cpu" else 8
    return DenoisingScheduler(model, max_batch_size, 32 if max_running is None else max_running)
