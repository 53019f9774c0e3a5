"""Sound from the frames of a codec as they come: exactly, where it is causal, else by windows of frames."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch.nn import Conv1d, ConvTranspose1d, Module
from torch.nn.functional import fold, pad

FIRST, MOST = 4, 32
"""Frames of the first window and of the longest; each is twice the one before."""


class Windows:
    """Decodes frames in windows, each with the frames before and after it, as far as the decoder looks.

    Where that is all that it sees (convolutions alone), the sound is that of all frames decoded at once, up to rounding.

    Args:
        decode: ``[codebooks, frames]`` to samples ``[frames * hop - tail]``, for some constant ``tail``.
        hop: samples per frame.
        reach: frames that a sample depends on, before and after its own.
    """

    def __init__(self, decode: Callable[[torch.Tensor], torch.Tensor], hop: int, reach: int) -> None:
        self._decode, self._hop, self._reach = decode, hop, reach
        self._frames: list[torch.Tensor] = []
        self._begin = self._sent = 0
        self._wanted = FIRST

    def push(self, frame: torch.Tensor) -> torch.Tensor | None:
        """Add a frame ``[codebooks]``; return the samples that are sure by now, if a window is complete."""
        self._frames.append(frame)
        ready = self._begin + len(self._frames) - self._reach
        if ready - self._sent < self._wanted:
            return None
        self._wanted = min(2 * self._wanted, MOST)
        return self._upto(ready)

    def finish(self) -> torch.Tensor | None:
        """Return the rest."""
        return self._upto(None) if self._frames else None

    def _upto(self, end: int | None) -> torch.Tensor:
        samples = self._decode(torch.stack(self._frames, 1))
        first = (self._sent - self._begin) * self._hop
        if end is None:
            return samples[first:]
        self._sent, keep = end, max(end - self._reach, self._begin)
        sound = samples[first : (end - self._begin) * self._hop]
        self._frames, self._begin = self._frames[keep - self._begin :], keep
        return sound


def reach_of(decoder: Module) -> int:
    """Return the frames that a sample of a convolutional decoder depends on, before and after its own. Its modules stand in their order."""
    rate, frames = 1, 0.0
    for module in decoder.modules():
        if isinstance(module, ConvTranspose1d):
            frames += math.ceil(module.kernel_size[0] / module.stride[0]) / rate
            rate *= module.stride[0]
        elif isinstance(module, Conv1d):
            width = (module.kernel_size[0] - 1) * module.dilation[0]
            frames += (
                width / 2 if module.padding != (0,) else width
            ) / rate  # padded elsewhere, it may look to one side alone
    return math.ceil(frames) + 1


class Causal:
    """Decodes the frames of a causal codec of the kind of Mimi one by one, exactly.

    Its transformer has a cache of keys and values. Its convolutions keep their last inputs, and its transposed convolutions what their
    last inputs add to the next outputs: transformers has such a state for the encoder alone.

    Args:
        codec: has a ``decoder``, the half that makes the sound, and ``decode(frames)``, whose output has ``audio_values``.
    """

    def __init__(self, codec: Any) -> None:
        _make_streaming(codec.decoder)
        self._decode = codec.decode
        named = inspect.signature(codec.decode).parameters
        self._cache = (
            "decoder_cache" if "decoder_cache" in named else "decoder_past_key_values"
        )  # before transformers 5.24
        self._state: dict[Module, torch.Tensor] = {}
        self._past: Any = None

    def push(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the samples of the next frames."""
        global _state
        _state = self._state
        try:
            found = self._decode(frames, **{self._cache: self._past}, use_cache=True)
        finally:
            _state = None
        self._past = getattr(found, self._cache)
        samples: torch.Tensor = found.audio_values.reshape(-1)
        return samples


_state: dict[Module, torch.Tensor] | None = None
"""Of the stream that is being decoded: one at any time."""

_streaming: WeakSet[Module] = WeakSet()


def _make_streaming(decoder: Module) -> None:
    """Let the convolutions of a decoder use :data:`_state`; without one, they compute as before."""
    for module in decoder.modules():
        inner = getattr(module, "conv", None)
        if module in _streaming or not isinstance(inner, Conv1d | ConvTranspose1d):
            continue
        if not module.causal or getattr(module, "trim_right_ratio", 1.0) != 1.0:
            raise TypeError(f"{type(module).__name__} is not causal")
        _streaming.add(module)
        step = _convolved if isinstance(inner, Conv1d) else _upsampled
        module.forward = _stateful(module, module.forward, step)


def _stateful(module: Any, whole: Callable[..., Any], step: Callable[..., Any]) -> Callable[..., Any]:
    def forward(inputs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return whole(inputs, *args, **kwargs) if _state is None else step(module, inputs, _state)

    return forward


def _convolved(module: Any, inputs: torch.Tensor, state: dict[Module, torch.Tensor]) -> torch.Tensor:
    conv = module.conv
    width = (conv.kernel_size[0] - 1) * conv.dilation[0] + 1 - conv.stride[0]
    before = state.get(module)
    if before is None:
        before = (
            inputs[..., :1].expand(-1, -1, width)
            if module.pad_mode == "replicate"
            else inputs.new_zeros(*inputs.shape[:2], width)
        )
    inputs = torch.cat([before, inputs], -1)
    state[module] = inputs[..., inputs.shape[-1] - width :]
    output: torch.Tensor = conv(inputs)
    return output


def _upsampled(module: Any, inputs: torch.Tensor, state: dict[Module, torch.Tensor]) -> torch.Tensor:
    conv = module.conv
    bias = 0.0 if conv.bias is None else conv.bias[:, None]
    sums = _sums(conv, inputs, bias)
    overlap = conv.kernel_size[0] - conv.stride[0]
    before = state.get(module)
    if before is not None:
        sums = sums + pad(before, (0, sums.shape[-1] - overlap))
    end = sums.shape[-1] - overlap
    state[module] = sums[..., end:]
    output: torch.Tensor = sums[..., :end] + bias
    return output


def _sums(conv: ConvTranspose1d, inputs: torch.Tensor, bias: torch.Tensor | float) -> torch.Tensor:
    """Return a transposed convolution without its bias; on a CPU as a product, as PyTorch's own is slow for the few inputs of a frame."""
    is_plain = (conv.groups, conv.padding, conv.output_padding, conv.dilation) == (1, (0,), (0,), (1,))
    if inputs.device.type != "cpu" or not is_plain:
        sums: torch.Tensor = conv(inputs) - bias
        return sums
    products = (inputs.transpose(1, 2) @ conv.weight.flatten(1)).transpose(1, 2)  # [batch, outputs * kernel, inputs]
    [width], [stride] = conv.kernel_size, conv.stride
    length = (inputs.shape[-1] - 1) * stride + width
    return fold(products, (1, length), (1, width), stride=(1, stride))[:, :, 0]
