"""diffusers' autoencoder of Qwen-Image for single images: its layers are those of a video, of which an image is the first frame."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from omni_diffusion.qwen_image.checkpoint import Checkpoint


class Autoencoder:
    """The autoencoder.

    Its convolutions run over three frames, two of which lie before the first frame and are zeros. Here they run over the one that is
    there: a third of the arithmetic, with the same result up to rounding.

    Args:
        dtype: of the weights; ``None``: the checkpoint's.
        half: ``encoder`` or ``decoder``, the half that is needed; the other is not kept.
    """

    def __init__(self, checkpoint: Checkpoint, device: str, dtype: torch.dtype | None, half: str) -> None:
        from diffusers import AutoencoderKLQwenImage

        kind = {} if dtype is None else {"torch_dtype": dtype}
        network = checkpoint.network("vae", AutoencoderKLQwenImage, device, **kind)
        self.dtype: torch.dtype = network.dtype
        self.scale: int = 2 ** (len(network.temperal_downsample) + 1)
        """Pixels in each direction to whose multiples an image is resized."""
        config = network.config
        self._mean, self._std = (
            torch.tensor(each).view(1, -1, 1, 1).to(device, self.dtype)
            for each in (config.latents_mean, config.latents_std)
        )
        beside = network.quant_conv if half == "encoder" else network.post_quant_conv
        self._layers = nn.ModuleList([getattr(network, half), beside])
        _for_one_frame(self._layers)

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """``[n, 3, height, width]`` in [-1, 1] to the most likely latents, normalised, ``[n, channels, height / 8, width / 8]``."""
        encoder, after = self._layers
        moments = after(encoder(_frame(images)))[:, :, 0]
        return (moments.chunk(2, dim=1)[0] - self._mean) / self._std

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`encode`."""
        decoder, before = self._layers
        images: torch.Tensor = decoder(before(_frame(latents * self._std + self._mean)))[:, :, 0]
        return images.clamp(-1, 1)


class OneFrame(nn.Module):
    """A causal convolution over time of the first frame: the last slice of its kernel."""

    def __init__(self, causal: nn.Conv3d, padding: tuple[int, int]) -> None:
        super().__init__()
        weight = causal.weight.detach()[:, :, -1].contiguous(memory_format=torch.channels_last)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", None if causal.bias is None else causal.bias.detach())
        self._stride, self._padding = causal.stride[1:], padding

    def forward(self, x: torch.Tensor, before: None = None) -> torch.Tensor:
        """``[n, channels, 1, height, width]`` to the same; ``before``: frames before it, of which there are none."""
        return F.conv2d(x[:, :, 0], self.weight, self.bias, self._stride, self._padding).unsqueeze(2)  # type: ignore[arg-type]


def _for_one_frame(network: nn.Module) -> None:
    """Replace the convolutions over frames. Those that change the number of frames never see a single one."""
    from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d

    for module in list(network.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, QwenImageCausalConv3d) and name != "time_conv":
                setattr(module, name, OneFrame(layer, (layer._padding[2], layer._padding[0])))


def _frame(images: torch.Tensor) -> torch.Tensor:
    """Return ``[n, channels, 1, height, width]``, its channels innermost in memory, which the convolutions are faster with."""
    return images.contiguous(memory_format=torch.channels_last).unsqueeze(2)
