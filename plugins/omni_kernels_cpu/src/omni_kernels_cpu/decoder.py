"""The kernel of ``decode_layers``: a decoder's weights as C structures, made once, and a step as one call."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, byref, cast
from weakref import WeakKeyDictionary

import torch

from omni_kernels_cpu.library import LayerStruct, MatrixStruct, StackStruct, StepStruct, has_tiles, library
from omni_kernels_cpu.rows import FLOAT32_HALVES, KINDS, as_read, by_output, groups_fit, is_coded, kind_of
from omni_torch import api as operations
from omni_torch.api import GROUP, DecoderStack, LayerWeights, Matrix

Caches = Sequence[torch.Tensor] | torch.Tensor


class BoundStack:
    """The C structures of a stack. They point into its weights; norms, scales and biases are copied in float32.

    Attributes:
        fits: False if the library cannot read a weight.
        narrow: True if the first matrix has weights narrower than float32 and inputs in bfloat16, which tiles multiply.
        whole: True if the first matrix is multiplied as integers, for which tiles are not used.
    """

    def __init__(self, stack: DecoderStack) -> None:
        self._kept: list[object] = []
        self._dtype = stack.norm.dtype
        self.fits = True
        self.layers = (LayerStruct * len(stack.layers))(*map(self._layer, stack.layers))
        hidden = stack.norm.shape[0]
        sizes = len(stack.layers), hidden, stack.heads, stack.kv_heads, stack.head_dim
        self.struct = StackStruct(self.layers, self._floats(stack.norm), *sizes, stack.eps, stack.pairs)
        self.fits = self.fits and stack.head_dim % 2 == 0
        self.whole = stack.layers[0].qkv.int8_inputs
        self.narrow = self.layers[0].qkv.kind not in (KINDS[torch.float32], FLOAT32_HALVES)
        self._attached: tuple[Caches, Caches] | None = None

    def attach(self, keys: Caches, values: Caches) -> None:
        """Point the layers to their keys and values.

        Tuples are kept until others come, so the same ones are the same caches at a later step; a tensor may be a new one that begins where
        the last one began.
        """
        last = self._attached
        if last is not None and last[0] is keys and last[1] is values:
            return
        self._attached = (keys, values) if isinstance(keys, tuple) and isinstance(values, tuple) else None
        for layer, key, value in zip(self.layers, keys, values, strict=True):
            layer.keys, layer.values = key.data_ptr(), value.data_ptr()

    @property
    def as_prompts(self) -> bool:
        """True if decode steps are computed by the code of prompts: tiles multiply one row as fast as sixteen, and no slower than its
        weights are read.
        """
        return self.narrow and not self.whole and has_tiles()

    def _layer(self, layer: LayerWeights) -> LayerStruct:
        made = LayerStruct(
            self._floats(layer.input_norm),
            self._floats(layer.post_norm),
            None if layer.head_norms is None else self._floats(layer.head_norms),
        )
        made.qkv, made.output = self.matrix(layer.qkv), self.matrix(layer.output)
        if layer.dense is not None:
            made.gate_up, made.down = map(self.matrix, layer.dense)
        mixture = layer.mixture
        if mixture is not None:
            flat = [self.matrix(each) for pair in mixture.experts for each in pair]
            experts = (MatrixStruct * len(flat))(*flat)
            self._kept.append(experts)
            # The kernel rounds the inputs of all experts once, for the first one's weights.
            self.fits = self.fits and len({(each.kind, each.out, each.inner, each.int8_inputs) for each in flat}) <= 2
            made.router, made.experts = self.matrix(mixture.router), cast(experts, POINTER(MatrixStruct))
            made.top_k, made.normalize = mixture.top_k, mixture.normalize
            if mixture.shared_gate is not None:
                made.shared_gate = self.matrix(mixture.shared_gate)
        return made

    def matrix(self, matrix: Matrix) -> MatrixStruct:
        """Return the structure of a matrix, which this keeps."""
        weight = matrix.weight
        if weight.dtype not in KINDS or not weight.is_contiguous() or weight.device.type != "cpu":
            self.fits = False
            return MatrixStruct()
        self._kept.append(weight)
        bias = None if matrix.bias is None else self._floats(matrix.bias)
        out, inner = weight.shape
        kind = kind_of(weight, matrix.scales, self._dtype)
        if matrix.scales is not None and not by_output(matrix.scales):
            groups = as_read(matrix.scales)
            self._kept.append(groups)
            self.fits = self.fits and groups_fit(weight, groups, matrix.int8_inputs)
            inner = inner // 3 * 2 if is_coded(groups) else GROUP * groups.shape[-1]
            rest = kind, groups.data_ptr(), matrix.int8_inputs, groups.dim() == 3
            return MatrixStruct(weight.data_ptr(), None, bias, out, inner, *rest)
        scales = None if matrix.scales is None else self._floats(matrix.scales)
        return MatrixStruct(weight.data_ptr(), scales, bias, out, inner, kind, None, matrix.int8_inputs)

    def _floats(self, tensor: torch.Tensor) -> int:
        wide = tensor.detach().float().contiguous()
        self._kept.append(wide)
        return wide.data_ptr()


_bound: WeakKeyDictionary[DecoderStack, BoundStack] = WeakKeyDictionary()


def bound_stack(stack: DecoderStack) -> BoundStack:
    """Return the C structures of a stack, made at the first call."""
    bound = _bound.get(stack)
    if bound is None:
        bound = _bound[stack] = BoundStack(stack)
    return bound


def decode_layers(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    block_size: int,
    keys: Caches,
    values: Caches,
    stack: DecoderStack,
    capture: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """See :func:`omni_torch.operations.decoder_stack.decode_layers`."""
    arguments = x, cos, sin, pages, lengths, block_size, keys, values, stack, capture
    made = _compute(*arguments, prompts=False)
    return operations.decode_layers.reference(*arguments) if made is None else made


def prefill_layers(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    block_size: int,
    keys: Caches,
    values: Caches,
    stack: DecoderStack,
    capture: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """See :func:`omni_torch.operations.decoder_stack.prefill_layers`."""
    arguments = x, cos, sin, pages, lengths, block_size, keys, values, stack, capture
    made = _compute(*arguments, prompts=True)
    return operations.prefill_layers.reference(*arguments) if made is None else made


def _compute(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    block_size: int,
    keys: Caches,
    values: Caches,
    stack: DecoderStack,
    capture: int | None,
    prompts: bool,
) -> tuple[torch.Tensor, ...] | None:
    """Compute by the library; ``None`` if it cannot read the arguments."""
    bound = bound_stack(stack)
    caches_fit = keys[0].dtype == values[0].dtype == x.dtype and keys[0].is_contiguous() and values[0].is_contiguous()
    if not bound.fits or not caches_fit:
        return None
    bound.attach(keys, values)
    x, cos, sin, pages, lengths = (each.contiguous() for each in (x, cos, sin, pages, lengths))
    output = torch.empty_like(x)
    captured = None if capture is None else torch.empty_like(x)
    step = StepStruct(
        x.data_ptr(), cos.data_ptr(), sin.data_ptr(), pages.data_ptr(), lengths.data_ptr(), output.data_ptr(),
        None if captured is None else captured.data_ptr(),
        len(x), pages.shape[1], block_size, capture or 0, KINDS[x.dtype], 1,
    )  # fmt: skip
    loaded = library()
    compute = loaded.omni_cpu_prefill if prompts or bound.as_prompts else loaded.omni_cpu_decode
    compute(byref(bound.struct), byref(step), torch.get_num_threads())
    return (output,) if captured is None else (output, captured)
