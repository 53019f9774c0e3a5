"""The kernel of ``decode_sound``: a vocoder's layers as C structures with packed weights, made once, and a pass as one call."""

from __future__ import annotations

from ctypes import byref
from math import pi
from weakref import WeakKeyDictionary

import torch

from omni_kernels_cpu.library import instruction_set, library
from omni_kernels_cpu.rows import KINDS
from omni_kernels_cpu.sound_structs import LayerStruct, SnakeStruct, SoundStruct, StackStruct
from omni_torch import api as operations
from omni_torch.api import ConvNeXt, Convolution, Layer, Residual, Snake, SoundStack, Upsampling, memory_of

WORDS, PAIRS, TILES = range(3)
OUTS = 6
"""Outputs that are multiplied at once, whose weights are adjacent."""


def packed(weight: torch.Tensor, form: int) -> torch.Tensor:
    """Lay out the weights of a convolution, ``[out, in, taps]``, as native/convolution.h reads them."""
    weight = weight.detach()
    out, inner, taps = weight.shape
    if form == TILES:
        made = _padded(weight.to(torch.bfloat16), 16, 32).view(-1, 16, -(-inner // 32), 16, 2, taps)
        return made.permute(0, 5, 2, 1, 3, 4).contiguous()
    outs = 1 if out == 1 else OUTS
    if form == PAIRS:
        made = _padded(weight.to(torch.bfloat16), outs, 2).view(-1, outs, -(-inner // 2), 2, taps)
        return made.permute(0, 2, 4, 1, 3).contiguous()
    return _padded(weight.float(), outs, 1).view(-1, outs, inner, taps).permute(0, 2, 3, 1).contiguous()


def _padded(weight: torch.Tensor, outs: int, inputs: int) -> torch.Tensor:
    out, inner, taps = weight.shape
    made = weight.new_zeros(-(-out // outs) * outs, -(-inner // inputs) * inputs, taps)
    made[:out, :inner] = weight
    return made


class BoundSound:
    """The C structures of a stack; weights are packed for a dtype and an instruction set, the rest is copied in float32."""

    def __init__(self, stack: SoundStack, form: int) -> None:
        self._kept: list[torch.Tensor] = []
        self._form = form
        pairs = zip(stack.layers, stack.places, strict=True)
        self._layers = (LayerStruct * len(stack.layers))(*(self._layer(*each) for each in pairs))
        self.struct = StackStruct(self._layers, len(stack.layers), form)
        self.outputs = self._layers[-1].outputs

    def _layer(self, layer: Layer, place: int) -> LayerStruct:
        made = LayerStruct(inputs=memory_of(layer)[0], taps=1, dilation=1, rate=1, memory=place)
        match layer:
            case Convolution():
                made.kind = 0
                self._first(made, layer)
            case Upsampling():
                made.kind, made.rate, made.trims = 1, layer.rate, int(layer.trims)
                made.taps, made.outputs = layer.reach + 1, layer.weight.shape[1]
                # An output depends on its own column, by the first part of the kernel, and on the one before, by the second.
                parts = layer.weight.detach().unflatten(2, (layer.reach + 1, layer.rate)).flip(2)
                made.first = self._weights(parts.permute(1, 3, 0, 2).flatten(0, 1))
                made.first_bias, made.before = self._floats(layer.bias), self._snake(layer.before)
            case Residual():
                made.kind = 2
                self._first(made, layer.first)
                made.second, made.second_bias = self._weights(layer.second.weight), self._floats(layer.second.bias)
                made.between = self._snake(layer.second.before)
            case ConvNeXt():
                made.kind, made.taps, made.outputs = 3, layer.weight.shape[2], len(layer.weight)
                made.inner, made.eps = len(layer.wide), layer.eps
                made.first, made.first_bias = self._weights(layer.wide.unsqueeze(2)), self._floats(layer.wide_bias)
                made.second, made.second_bias = (
                    self._weights(layer.narrow.unsqueeze(2)),
                    self._floats(layer.narrow_bias),
                )
                made.depthwise, made.depthwise_bias = self._floats(layer.weight), self._floats(layer.bias)
                made.norm, made.norm_bias = self._floats(layer.norm), self._floats(layer.norm_bias)
                made.gamma = self._floats(layer.gamma)
        return made

    def _first(self, made: LayerStruct, layer: Convolution) -> None:
        made.outputs, _, made.taps = layer.weight.shape
        made.dilation = layer.dilation
        made.first, made.first_bias = self._weights(layer.weight), self._floats(layer.bias)
        made.before = self._snake(layer.before)

    def _snake(self, snake: Snake | None) -> SnakeStruct:
        if snake is None:
            return SnakeStruct()
        frequency, scale = snake.coefficients(torch.float32)
        return SnakeStruct(self._floats(frequency / pi), self._floats(scale))

    def _weights(self, weight: torch.Tensor) -> int:
        return self._keep(packed(weight, self._form))

    def _floats(self, tensor: torch.Tensor) -> int:
        return self._keep(tensor.detach().float().contiguous())

    def _keep(self, tensor: torch.Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()


_bound: WeakKeyDictionary[SoundStack, dict[tuple[str, torch.dtype], BoundSound]] = WeakKeyDictionary()


def decode_sound(x: torch.Tensor, memory: torch.Tensor, begun: bool, stack: SoundStack) -> torch.Tensor:
    """See :func:`omni_torch.operations.sound_stack.decode_sound`."""
    if memory.dtype != torch.float32 or not memory.is_contiguous() or not x.numel():
        return operations.decode_sound.reference(x, memory, begun, stack)
    stack.check(x.shape[2], begun)
    key = instruction_set(), x.dtype
    made = _bound.setdefault(stack, {})
    if key not in made:
        made[key] = BoundSound(stack, library().omni_cpu_sound_form(KINDS[x.dtype]))
    bound, x = made[key], x.contiguous()
    batch, _, columns = x.shape
    output = x.new_empty(batch, bound.outputs, stack.samples(columns, begun))
    call = SoundStruct(
        x.data_ptr(), memory.data_ptr(), output.data_ptr(), batch, columns, stack.memory_size, output.shape[2], int(begun), KINDS[x.dtype],
    )  # fmt: skip
    library().omni_cpu_sound(byref(bound.struct), byref(call), torch.get_num_threads())
    return output
