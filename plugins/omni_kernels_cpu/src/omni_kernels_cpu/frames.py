"""The kernel of ``code_frames``: all positions and codes of frames as one call."""

from __future__ import annotations

from ctypes import byref, c_void_p
from weakref import WeakKeyDictionary

import torch

from omni_kernels_cpu.decoder import bound_stack
from omni_kernels_cpu.library import FramesStruct, MatrixStruct, library
from omni_kernels_cpu.rows import KINDS
from omni_torch import api as operations
from omni_torch.api import FramePredictor


class BoundPredictor:
    """The C structures of a predictor. They point into its weights.

    Attributes:
        fits: False if the library cannot read a weight.
        dtype: of the frames.
        embedded: the library's number of that of the embeddings.
    """

    def __init__(self, predictor: FramePredictor) -> None:
        self.stack = bound_stack(predictor.stack)
        fits, self.stack.fits = self.stack.fits, True
        matrices = [self.stack.matrix(each) for each in predictor.heads]
        self.fits, self.stack.fits = fits and self.stack.fits, fits
        self.heads = (MatrixStruct * len(matrices))(*matrices)
        self.embeddings = (c_void_p * len(matrices))(*(each.data_ptr() for each in predictor.embeddings))
        self.dtype, embedded = predictor.stack.norm.dtype, predictor.embeddings[0].dtype
        self.embedded = KINDS.get(embedded)
        self.fits = (
            self.fits
            and (embedded == self.dtype or (embedded, self.dtype) == (torch.bfloat16, torch.float32))
            and all(each.dtype == embedded and each.is_contiguous() for each in predictor.embeddings)
        )


_bound: WeakKeyDictionary[FramePredictor, BoundPredictor] = WeakKeyDictionary()


def code_frames(
    hidden: torch.Tensor,
    first: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    predictor: FramePredictor,
    temperature: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`omni_torch.operations.code_frames.code_frames`."""
    bound = _bound.get(predictor)
    if bound is None:
        bound = _bound[predictor] = BoundPredictor(predictor)
    if not bound.fits or bound.dtype != hidden.dtype or not len(hidden):
        return operations.code_frames.reference(hidden, first, cos, sin, predictor, temperature, uniforms, top_k, top_p)
    hidden, first, cos, sin = (each.contiguous() for each in (hidden, first, cos, sin))
    given = [None if each is None else each.double().contiguous() for each in (temperature, uniforms)]
    stack, groups, rows = predictor.stack, len(predictor.heads) + 1, len(hidden)
    shape = len(stack.layers), rows * groups, stack.kv_heads, stack.head_dim
    keys, values = hidden.new_empty(shape), hidden.new_empty(shape)
    bound.stack.attach(keys, values)
    codes, total = hidden.new_empty(rows, groups - 1, dtype=torch.int64), torch.empty_like(first)
    frames = FramesStruct(
        hidden.data_ptr(), first.data_ptr(), cos.data_ptr(), sin.data_ptr(), bound.heads, bound.embeddings,
        *(None if each is None else each.data_ptr() for each in given), codes.data_ptr(), total.data_ptr(),
        rows, groups, top_k, KINDS[hidden.dtype], bound.stack.as_prompts, bound.embedded, top_p,
    )  # fmt: skip
    library().omni_cpu_frames(byref(bound.stack.struct), byref(frames), torch.get_num_threads())
    return codes, total
