"""Kernels of single operations. Arguments that the library does not take go to the reference."""

from __future__ import annotations

from ctypes import byref

import torch

from omni_kernels_cpu.library import ExpertsStruct, MatrixStruct, library
from omni_torch import api as operations
from omni_torch.api import UNIT

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 3}
INT8_GROUPS = 4
"""The kind of int8 weights whose scales are matrices."""
CODES = 5
"""The kind of weights in bfloat16 that are stored as codes."""
FLOAT32_HALVES = 6
"""The kind of weights in bfloat16 that are multiplied with inputs in float32."""
MOST_EXPERT_ROWS = 32
"""The most rows of a mixture that is computed here; the products of more rows have better kernels."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See :func:`omni_torch.operations.shared.rms_norm`."""
    if weight.dtype != x.dtype or not x.numel():
        return operations.rms_norm.reference(x, weight, eps)
    x, weight, size = x.contiguous(), weight.contiguous(), x.shape[-1]
    output = torch.empty_like(x)
    rows, kind, threads = x.numel() // size, KINDS[x.dtype], torch.get_num_threads()
    library().omni_cpu_rms_norm(
        x.data_ptr(), None, weight.data_ptr(), eps, rows, size, kind, None, output.data_ptr(), threads
    )
    return output


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`omni_torch.operations.shared.add_rms_norm`."""
    if not x.dtype == weight.dtype == residual.dtype or x.shape != residual.shape or not x.numel():
        return operations.add_rms_norm.reference(x, residual, weight, eps)
    x, residual, weight, size = x.contiguous(), residual.contiguous(), weight.contiguous(), x.shape[-1]
    total, output = torch.empty_like(x), torch.empty_like(x)
    rows, kind, threads = x.numel() // size, KINDS[x.dtype], torch.get_num_threads()
    pointers = total.data_ptr(), output.data_ptr()
    library().omni_cpu_rms_norm(
        x.data_ptr(), residual.data_ptr(), weight.data_ptr(), eps, rows, size, kind, *pointers, threads
    )
    return total, output


def few_rows_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    int8_inputs: bool = False,
) -> torch.Tensor:
    """See :func:`omni_torch.operations.few_rows.few_rows_linear`."""
    quantized = weight.dtype in (torch.int8, torch.uint8)
    halves = weight.dtype == torch.bfloat16 and x.dtype == torch.float32
    fits = (
        weight.is_contiguous()
        and quantized == (scales is not None)
        and (quantized or halves or weight.dtype == x.dtype)
    )
    fits = fits and (scales is None or by_output(scales) or groups_fit(weight, scales, int8_inputs))
    if fits and scales is not None and is_coded(scales):
        fits = 2 * weight.shape[1] == 3 * x.shape[-1]
    if fits and weight.numel() and x.shape[-1] and not x.numel():
        return x.new_empty(*x.shape[:-1], weight.shape[0])  # the reference would widen the weight for it
    if not fits or not x.numel() or not weight.numel():
        return operations.few_rows_linear.reference(x, weight, scales, bias, int8_inputs)
    x = x.contiguous()
    output = x.new_empty(*x.shape[:-1], weight.shape[0])
    # Tensors that the structure points into, which live until the product is computed.
    wide_bias = None if bias is None else bias.float().contiguous()
    groups = wide_scales = None
    if scales is not None and not by_output(scales):
        groups = as_read(scales)
    elif scales is not None:
        wide_scales = scales.float().contiguous()
    matrix = MatrixStruct(
        weight.data_ptr(), _pointer(wide_scales), _pointer(wide_bias), weight.shape[0], x.shape[-1], kind_of(weight, scales, x.dtype),
        _pointer(groups), int8_inputs, groups is not None and groups.dim() == 3,
    )  # fmt: skip
    rows, kind, threads = x.numel() // x.shape[-1], KINDS[x.dtype], torch.get_num_threads()
    library().omni_cpu_product(byref(matrix), x.data_ptr(), kind, rows, output.data_ptr(), threads)
    return output


def kind_of(weight: torch.Tensor, scales: torch.Tensor | None, inputs: torch.dtype) -> int:
    """Return the library's number for a kind of weights. ``inputs``: the dtype of theirs."""
    if weight.dtype == torch.bfloat16 and inputs == torch.float32:
        return FLOAT32_HALVES
    if scales is not None and is_coded(scales):
        return CODES
    return (
        INT8_GROUPS if weight.dtype == torch.int8 and scales is not None and scales.dim() > 1 else KINDS[weight.dtype]
    )


def is_coded(scales: torch.Tensor) -> bool:
    """Return whether these are the words of :func:`omni_torch.quantization.coded_weights.coded_bfloat16`."""
    return scales.dtype == torch.int32


def by_output(scales: torch.Tensor) -> bool:
    """Return whether there is a scale per output."""
    return scales.dim() == 1 and not is_coded(scales)


def as_read(scales: torch.Tensor) -> torch.Tensor:
    """Return scales of groups in bfloat16, or words as they are, as the library reads them."""
    return (scales if is_coded(scales) else scales.detach().to(torch.bfloat16)).contiguous()


def groups_fit(weight: torch.Tensor, scales: torch.Tensor, int8_inputs: bool) -> bool:
    """Return whether the library multiplies weights with these scales of groups, or words: whole groups, and of int8 neither zero points
    nor inputs in 8 bits, which codes have not either.
    """
    if is_coded(scales):
        return not int8_inputs and weight.dtype == torch.uint8 and weight.shape[-1] % (UNIT * 3 // 2) == 0
    size = weight.shape[-1] * (2 if weight.dtype == torch.uint8 else 1)
    plain = weight.dtype == torch.uint8 or (scales.dim() == 2 and not int8_inputs)
    return plain and size == operations.GROUP * scales.shape[-1]


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    first: int = 0,
    total: int | None = None,
    gate_up_scales: torch.Tensor | None = None,
    down_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """See :func:`omni_torch.operations.experts.experts`."""
    given = (x, weights, gate_up, down)
    same = all(each.dtype == x.dtype and each.is_contiguous() for each in given) and chosen.is_contiguous()
    if not same or not 0 < len(x) <= MOST_EXPERT_ROWS:
        return operations.experts.reference(
            x, weights, chosen, gate_up, down, first, total, gate_up_scales, down_scales
        )
    output = torch.empty_like(x)
    pointers = (each.data_ptr() for each in (x, weights, chosen, gate_up, down, output))
    rows, hidden = x.shape
    count, _, inner = down.shape
    arguments = ExpertsStruct(*pointers, rows, chosen.shape[1], count, hidden, inner, KINDS[x.dtype], first)
    library().omni_cpu_experts(byref(arguments), torch.get_num_threads())
    return output
