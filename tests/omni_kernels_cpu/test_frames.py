"""Frames as one call, on every instruction set, beside the same frames step by step: equal to the last bit, whatever is beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve

from omni_kernels_cpu import decoder, rows
from omni_kernels_cpu.decoder import bound_stack
from omni_kernels_cpu.frames import code_frames
from omni_torch.operations import code_frames as operations
from omni_torch.operations.code_frames import CodeChoice, FramePredictor, frames_example
from omni_torch.operations.comparison import relative_error
from omni_torch.operations.decoder_stack import DecoderStack, LayerWeights
from omni_torch.operations.few_rows import Matrix
from omni_torch.quantization.coded_weights import UNIT, coded_bfloat16
from omni_torch.quantization.quantized_values import quantized_int4, quantized_int8

pytestmark = pytest.mark.usefixtures("instruction_set")

KINDS: dict[str, tuple[Any, bool]] = {
    "float32": (None, False),
    "bfloat16": (None, False),
    "bfloat16 with floats": (lambda weight: (weight.to(torch.bfloat16), None), False),
    "bfloat16 in 12 bits": (coded_bfloat16, False),
    "int8": (quantized_int8, False),
    "int4": (quantized_int4, False),
    "int8 both": (quantized_int8, True),
    "int4, int8 inputs": (quantized_int4, True),
}
"""The quantisation of weights, and True where their inputs are rounded to 8 bits too."""

SIZES: dict[str, Any] = {"hidden": 96, "heads": 6, "kv_heads": 2, "head_dim": 32, "frames": 5, "vocab": 37, "groups": 6}
ODD: dict[str, Any] = {"hidden": 50, "heads": 3, "kv_heads": 1, "head_dim": 18, "frames": 3, "vocab": 29, "groups": 3}


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def narrowed(kind: str, matrix: Matrix) -> Matrix:
    quantized, int8_inputs = KINDS[kind]
    if quantized is coded_bfloat16 and matrix.weight.shape[1] % UNIT:
        return matrix
    return matrix if quantized is None else Matrix(*quantized(matrix.weight), matrix.bias, int8_inputs)


def frames(kind: str, *, vocab: int = 37, **sizes: Any) -> list[Any]:
    """Return arguments of ``code_frames``: logits of the size of 1, so that many codes may be drawn; some of them tie."""
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    if kind == "bfloat16 in 12 bits":
        sizes = {"hidden": 128, "heads": 4, "head_dim": 64, **sizes}
    if kind == "bfloat16 with floats":
        sizes["stored"] = torch.bfloat16
    arguments = list(frames_example(dtype, generator(2), **{**SIZES, **sizes, "vocab": vocab}, drawn=True))
    given: FramePredictor = arguments[4]

    def layer(each: LayerWeights) -> LayerWeights:
        assert each.dense is not None
        dense = narrowed(kind, each.dense[0]), each.dense[1]
        return evolve(each, qkv=narrowed(kind, each.qkv), output=narrowed(kind, each.output), dense=dense)

    stack = evolve(given.stack, layers=[layer(each) for each in given.stack.layers])
    heads = []
    for number, each in enumerate(given.heads):
        weight = torch.randn(each.weight.shape, generator=generator(number)) * 2 * each.weight.shape[1] ** -0.5
        weight[1::7] = weight[::7][: len(weight[1::7])]
        heads.append(narrowed(kind, Matrix(weight.to(dtype))))
    arguments[4] = evolve(given, stack=stack, heads=heads)
    arguments[6] = torch.rand(arguments[6].shape, generator=generator(9), dtype=torch.float64)
    return arguments


def by_steps(
    hidden: torch.Tensor,
    first: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    predictor: FramePredictor,
    *choice: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute frames by the kernels of steps and of products."""
    stack: DecoderStack = predictor.stack
    count, groups = len(hidden), len(predictor.heads) + 1
    shape = len(stack.layers), count * groups, stack.kv_heads, stack.head_dim
    keys, values = (torch.full(shape, float("nan"), dtype=hidden.dtype) for _ in range(2))
    pages = torch.arange(count, dtype=torch.int32).unsqueeze(1)

    def layers(x: torch.Tensor, begin: int, size: int) -> torch.Tensor:
        operation = decoder.prefill_layers if size > 1 and bound_stack(stack).as_prompts else decoder.decode_layers
        parts = [slice(None)] if operation is decoder.prefill_layers else [slice(at, None, size) for at in range(size)]
        angles = [each[begin : begin + size].repeat(count, 1).unsqueeze(1) for each in (cos, sin)]
        lengths = torch.arange(begin + 1, begin + size + 1, dtype=torch.int32).repeat(count)
        every = [x, *angles, pages.repeat_interleave(size, 0), lengths]
        outputs = [operation(*(each[part] for each in every), groups, keys, values, stack)[0] for part in parts]
        return outputs[0][size - 1 :: size] if len(parts) == 1 else outputs[-1]

    choose, codes, total = CodeChoice(*choice), [], first.clone()
    output = layers(torch.stack([hidden, first], 1).flatten(0, 1), 0, 2)
    for group, (head, embeddings) in enumerate(zip(predictor.heads, predictor.embeddings, strict=True)):
        codes.append(choose(rows.few_rows_linear(output, head.weight, head.scales, None, head.int8_inputs), group))
        x = embeddings[codes[-1].clamp(min=0)].to(first.dtype)
        total += x
        if group + 2 < groups:
            output = layers(x, group + 2, 1)
    return torch.stack(codes, 1), total


@pytest.mark.parametrize("kind", list(KINDS))
def test_frames_are_those_of_steps(kind: str, threads: None) -> None:
    """Codes and sums, drawn and greedy, alone, in a batch and on several threads."""
    torch.set_num_threads(1)
    arguments = frames(kind)
    codes, total = code_frames(*arguments)
    right, right_total = by_steps(*arguments)
    assert torch.equal(codes, right)
    assert torch.equal(total, right_total)
    assert codes.unique().numel() > 8, "the codes that are drawn differ"
    greedy, _ = code_frames(*arguments[:5])
    assert torch.equal(greedy, by_steps(*arguments[:5])[0])
    assert not torch.equal(greedy, codes)
    for row in range(len(codes)):
        one = slice(row, row + 1)
        alone = [
            *(each[one] for each in arguments[:2]),
            *arguments[2:5],
            *(each[one] for each in arguments[5:7]),
            *arguments[7:],
        ]
        made, sums = code_frames(*alone)
        assert torch.equal(made[0], codes[row])
        assert torch.equal(sums[0], total[row])
    for count in (2, 3):
        torch.set_num_threads(count)
        made, sums = code_frames(*arguments)
        assert torch.equal(made, codes)
        assert torch.equal(sums, total)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "bfloat16 with floats"])
def test_frames_of_odd_sizes(kind: str) -> None:
    """``bfloat16 with floats``: of the embeddings alone."""
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    stored = torch.bfloat16 if kind == "bfloat16 with floats" else None
    for number, sizes in enumerate(
        [{"frames": 1, "groups": 2}, {"frames": 2, "vocab": 16}, {"frames": 9, "vocab": 31, "groups": 4}, {}]
    ):
        arguments = frames_example(dtype, generator(number), **{**ODD, **sizes}, drawn=number % 2 == 0, stored=stored)
        assert relative_error(operations.code_frames, code_frames, arguments) <= (
            2e-2 if kind == "bfloat16" else 1e-5
        ), sizes


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (0, 0.7), (5, 1.0), (12, 0.8), (1, 1.0), (29, 0.05), (500, 0.999)]
)
def test_draws_are_those_of_the_operation(top_k: int, top_p: float) -> None:
    """Every limit, with codes that tie at it, at uniform numbers from 0 to the largest below 1; and temperatures near 0 and above 1."""
    arguments = frames("float32", **{**ODD, "vocab": 64, "frames": 16, "groups": 4})
    arguments[5] = torch.tensor([1.0, 0.0, 1e-9, 0.3, 2.0, 1.0, 1.0, 1.0] * 2, dtype=torch.float64)
    arguments[6][5:7] = torch.tensor([[0.0], [1 - 2**-53]])
    arguments[7:] = [top_k, top_p]
    codes, _ = code_frames(*arguments)
    assert torch.equal(codes, by_steps(*arguments)[0])
    assert (codes >= 0).all()


def test_what_is_not_finite_stays_in_its_frame() -> None:
    arguments = frames("float32")
    right, right_total = code_frames(*arguments)
    for value in (float("nan"), float("inf")):
        poisoned = [each.clone() if isinstance(each, torch.Tensor) else each for each in arguments]
        poisoned[0][2, 0] = value
        codes, total = code_frames(*poisoned)
        others = [0, 1, 3, 4]
        assert (codes[2] == -1).all()
        assert torch.equal(codes[others], right[others])
        assert torch.equal(total[others], right_total[others])
        assert total[2].isfinite().all(), "the embedding of code 0 is in the place of a code that is none"


def test_weights_that_the_library_cannot_read_go_to_the_reference() -> None:
    arguments = frames("float32", **ODD)
    given = arguments[4]
    for unreadable in (
        evolve(given, heads=[Matrix(each.weight.double()) for each in given.heads]),
        evolve(given, embeddings=[given.embeddings[0].to(torch.bfloat16), *given.embeddings[1:]]),
    ):
        arguments[4] = unreadable
        assert torch.equal(code_frames(*arguments)[0], operations.code_frames.reference(*arguments)[0])
