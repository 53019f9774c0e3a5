"""The mel2wav stage: mel frames to sound, by transformers' BigVGAN network (Lee et al., 2022, arXiv:2206.04658).

Sound is made and streamed in chunks. The network is made of convolutions, so a chunk with enough frames on either side is what it is
within the whole.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import Any

import torch

from omni_core.api import AudioChunk, AudioResult, ConfigError, SimpleScheduler, StagePayload
from omni_qwen25.config import read_config
from omni_qwen25.networks import check_dtype, load_part
from omni_qwen25.payloads import Mel

SAMPLE_RATE = 24_000
"""Hz. Not in the checkpoint's config; 240 samples of a mel frame are 10 ms."""

ACTIVATION_REACH = 9
"""Samples on either side that an activation reads: its filters of 12 taps at twice the rate, up and down."""


class Vocoder:
    """Makes the sound of one request after the other.

    Args:
        chunk: mel frames of a chunk of sound.
    """

    def __init__(self, model_path: str, device: str = "cpu", chunk: int = 300) -> None:
        if chunk < 1:
            raise ConfigError(f"chunk: must be at least 1 mel frame, is {chunk}")
        config = read_config(model_path)
        self._network = load_part(model_path, config, "bigvgan", dtype=torch.float32, device=device)
        self._device, self._chunk = torch.device(device), chunk
        self._per_frame = math.prod(self._network.config.upsample_rates)
        self._reach = reach(self._network.config)

    def __call__(self, payload: StagePayload) -> Generator[AudioChunk, None, AudioResult]:
        """Yield the sound of a :class:`~omni_qwen25.payloads.Mel` chunk by chunk; return all of it."""
        given: Mel = payload.data
        made = []
        for sound in self.pieces(given["mel"]):
            made.append(sound)
            yield AudioChunk(sound.numpy(), SAMPLE_RATE)
        samples = torch.cat(made) if made else torch.empty(0)
        notices = ["the speech was cut at max_new_tokens"] if given["is_cut"] else []
        return AudioResult(samples.numpy(), SAMPLE_RATE, given["codes"], notices)

    def pieces(self, mel: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield float32 samples ``[n]`` on the CPU of mel frames ``[mel_bins, frames]``, in chunks."""
        frames = mel.shape[1]
        for begin in range(0, frames, self._chunk):
            end = min(begin + self._chunk, frames)
            first, last = max(0, begin - self._reach), min(frames, end + self._reach)
            with torch.inference_mode():
                sound = self._network(mel[:, first:last].to(self._device).unsqueeze(0)).reshape(-1)
            yield sound[(begin - first) * self._per_frame : (end - first) * self._per_frame].float().cpu().clone()


def reach(config: Any) -> int:
    """Return the mel frames on either side of a frame that its sound depends on, rounded up.

    Args:
        config: transformers' ``Qwen2_5OmniBigVGANConfig``.
    """
    found, rate = 3.0, 1
    blocks = zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
    block = max(
        sum((kernel - 1) // 2 * (dilation + 1) + 2 * ACTIVATION_REACH for dilation in dilations)
        for kernel, dilations in blocks
    )
    for stride, kernel in zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True):
        rate *= stride
        found += (kernel + block) / rate
    return math.ceil(found + (ACTIVATION_REACH + 3) / rate)


def create_mel2wav(model_path: str, device: str = "cpu", dtype: str = "float32", chunk: int = 300) -> SimpleScheduler:
    """Make the mel2wav stage. ``chunk``: mel frames (10 ms each) in a piece of sound. ``dtype``: float32."""
    check_dtype(dtype)
    return SimpleScheduler(Vocoder(model_path, device, chunk))
