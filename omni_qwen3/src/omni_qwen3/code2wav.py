"""The code2wav stage: decodes codec frames to sound incrementally, with the same result as decoding all frames at once.

The network (transformers' ``Qwen3OmniMoeCode2Wav``) is a sliding-window transformer over frames followed by convolutions
that upsample. The transformer is causal, so it runs on new frames only, with a cache. The convolutions look back a bounded
number of frames, so each chunk is decoded with that many frames of context, whose sound is then cut off. The last 555 samples
that a decode lacks (its transposed convolutions trim both ends) come with the next chunk; no gap is left.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import define
from torch import nn
from transformers import DynamicCache
from transformers.initialization import no_init_weights
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_core.errors import ConfigError
from omni_qwen3.checkpoint import Checkpoint, load_module
from omni_qwen3.config import read_config
from omni_torch.checkpoints import load_checked
from omni_torch.operations import snake_beta, snake_conv
from omni_torch.vocoder import VocoderScheduler


class SnakeBeta(nn.Module):
    """The network's activation as an operation, for which a kernel may be registered."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.alpha, self.beta = original.alpha, original.beta

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return snake_beta(x, self.alpha, self.beta)


class SnakeConv(nn.Module):
    """An activation and the causal convolution behind it, as one operation."""

    def __init__(self, activation: Any, convolution: Any) -> None:
        super().__init__()
        self.alpha, self.beta = activation.alpha, activation.beta
        self.weight, self.bias = convolution.conv.weight, convolution.conv.bias
        self._dilation = convolution.conv.dilation[0]
        self._padding = (self.weight.shape[2] - 1) * self._dilation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return snake_conv(x, self.alpha, self.beta, self.weight, self.bias, self._dilation, self._padding)


class ResidualUnit(nn.Module):
    """The network's residual unit: two activations, each with a convolution."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.dilated = SnakeConv(original.act1, original.conv1)
        self.mixing = SnakeConv(original.act2, original.conv2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.mixing(self.dilated(x))
        return mixed + x


def _use_operations(network: nn.Module) -> None:
    """Replace activations, and convolutions behind them that are not transposed, by operations."""
    for name, child in network.named_children():
        if type(child).__name__.endswith("ResidualUnit"):
            setattr(network, name, ResidualUnit(child))
        elif type(child).__name__.endswith("SnakeBeta"):
            setattr(network, name, SnakeBeta(child))
        else:
            _use_operations(child)


@define(eq=False)
class Utterance:
    """The decoder state of one request.

    Attributes:
        cache: of the transformer, over the frames decoded.
        context: ``[hidden, frames]`` transformer outputs that the next chunk's convolutions look back on.
        frames: decoded so far. samples: emitted so far.
    """

    cache: DynamicCache
    context: torch.Tensor | None = None
    frames: int = 0
    samples: int = 0


class Vocoder:
    """Decodes chunks of frames.

    Args:
        left_context: frames of context for the convolutions; by default as many as they look back on, with which chunks equal
            a single decode. With fewer, decoding is faster and the joins are audible.
    """

    sample_rate = 24_000
    """Hz. Not in the checkpoint's config; one frame of 1920 samples is 80 ms."""

    def __init__(
        self, model_path: str, *, device: str = "cpu", dtype: str = "float32", left_context: int | None = None
    ) -> None:
        where, raw = "config.json.code2wav_config", read_config(model_path).raw
        if "code2wav_config" not in raw:
            raise ConfigError(f"{where}: missing; is this a Qwen3-Omni checkpoint with speech?")
        config = load_checked(where, lambda: Qwen3OmniMoeCode2WavConfig(**raw["code2wav_config"]))
        with no_init_weights():
            network = load_checked(where, lambda: Qwen3OmniMoeCode2Wav._from_config(config))
        kind = getattr(torch, dtype)
        self._network = load_module(network, Checkpoint(model_path), {"": "code2wav."}, dtype=kind, device=device)
        _use_operations(self._network)
        *layers, activation, convolution = self._network.decoder
        self._network.decoder = nn.ModuleList([*layers, SnakeConv(activation, convolution)])
        self._config, self.device = config, torch.device(device)
        self.codebooks, self.codebook_size = config.num_quantizers, config.codebook_size
        self.samples_per_frame = int(self._network.total_upsample)
        self.left_context = look_back(config) if left_context is None else left_context

    def begin(self) -> Utterance:
        """Return the state of a new request."""
        return Utterance(DynamicCache(config=self._config))

    @torch.inference_mode()
    def decode(self, work: list[tuple[Utterance, torch.Tensor]]) -> list[torch.Tensor]:
        """Decode the next frames of several utterances.

        Args:
            work: each utterance with its new frames, ``[frames, codebooks]`` int64, at least one.

        Returns:
            Each utterance's new samples, float32 ``[n]``.
        """
        windows = [self._transform(utterance, frames) for utterance, frames in work]
        waves: list[torch.Tensor] = [torch.empty(0)] * len(work)
        # Windows of equal length share one pass through the convolutions.
        for length in {window.shape[1] for window in windows}:
            indices = [index for index, window in enumerate(windows) if window.shape[1] == length]
            batch = self._upsample(torch.stack([windows[index] for index in indices]))
            for index, wave in zip(indices, batch, strict=True):
                waves[index] = self._new_samples(work[index][0], wave, windows[index])
        return waves

    def _transform(self, utterance: Utterance, frames: torch.Tensor) -> torch.Tensor:
        """Run the transformer on new frames; return its output with the context, ``[hidden, context + new]``."""
        codes = frames.T.unsqueeze(0).to(self.device)
        embedded = self._network.code_embedding(codes + self._network.code_offset).mean(1)
        output = self._network.pre_transformer(
            inputs_embeds=embedded, past_key_values=utterance.cache, use_cache=True
        ).last_hidden_state
        utterance.frames += len(frames)
        new = output[0].T
        return new if utterance.context is None else torch.cat([utterance.context, new], dim=1)

    def _upsample(self, hidden: torch.Tensor) -> torch.Tensor:
        """Run the convolutions: ``[B, hidden, T]`` to ``[B, samples]``."""
        for blocks in self._network.upsample:
            for block in blocks:
                hidden = block(hidden)
        for block in self._network.decoder:
            hidden = block(hidden)
        return hidden.clamp(min=-1, max=1)[:, 0].float().cpu()

    def _new_samples(self, utterance: Utterance, wave: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        """Return the samples that were not emitted before, and keep the context for the next chunk."""
        begin = (utterance.frames - window.shape[1]) * self.samples_per_frame
        new = wave[utterance.samples - begin :].clone()
        utterance.samples += len(new)
        utterance.context = window[:, -self.left_context :].clone() if self.left_context else None
        return new


def look_back(config: Qwen3OmniMoeCode2WavConfig) -> int:
    """Return how many earlier frames the convolutions read, from their kernel sizes."""
    reach = 6  # the last convolution: kernel 7
    for rate in reversed(config.upsample_rates):
        reach += 6 * (1 + 3 + 9)  # three residual units: kernel 7, dilations 1, 3, 9
        reach = -(-reach // rate) + 1  # a transposed convolution over two inputs
    reach += 6  # the first convolution: kernel 7
    for factor in reversed(config.upsampling_ratios):
        reach = -(-(reach + 6) // factor)  # a ConvNeXt block's kernel 7, then a transposed convolution over one input
    return reach + 1  # the trimmed tail of the chunk before


def create_code2wav(
    model_path: str,
    device: str = "cpu",
    dtype: str = "float32",
    initial_chunk: int = 4,
    chunk: int = 24,
    left_context: int | None = None,
) -> VocoderScheduler[Utterance]:
    """The stage; see :class:`VocoderScheduler` and :class:`Vocoder` for the options."""
    vocoder = Vocoder(model_path, device=device, dtype=dtype, left_context=left_context)
    return VocoderScheduler(vocoder, initial_chunk=initial_chunk, chunk=chunk)
