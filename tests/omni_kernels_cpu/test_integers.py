"""Products of narrow weights with inputs in 8 bits, on every instruction set, against their reference in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve

from omni_kernels_cpu import decoder, rows
from omni_kernels_cpu.library import instruction_set
from omni_torch.operations import decoder_stack
from omni_torch.operations.comparison import relative_error
from omni_torch.operations.decoder_stack import DecoderStack, MixtureWeights
from omni_torch.operations.few_rows import Matrix, few_rows_linear, rounded_inputs, widened
from omni_torch.quantization.quantized_values import quantized_int4

pytestmark = pytest.mark.usefixtures("instruction_set")
kinds = pytest.mark.parametrize("kind", ["int8", "int4", "int4 with zero points"])


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed))


def weights(kind: str, out: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random weights and scales, before noise and NaN in the same memory."""
    if kind == "int8":
        flat = torch.full((out * size + 64,), -128, dtype=torch.int8)
        flat[: out * size] = torch.randint(-127, 128, (out * size,), generator=generator(), dtype=torch.int8)
        return flat[: out * size].view(out, size), torch.rand(out, generator=generator())
    values = torch.full((out * size // 2 + 64,), 255, dtype=torch.uint8)
    values[: out * size // 2] = torch.randint(0, 256, (out * size // 2,), generator=generator(), dtype=torch.uint8)
    count = out * size // 32 * (1 if kind == "int4" else 2)
    flat = torch.full((count + 64,), float("nan")).to(torch.bfloat16)
    scales = flat[:count].view(out, -1, size // 32)
    scales.copy_(torch.rand(scales.shape, generator=generator()))
    scales[:, 1:] = 24 * scales[:, 1:] - 4  # no whole numbers, as those of Q4_K
    return values[: out * size // 2].view(out, -1), scales.squeeze(1)


@kinds
def test_products_of_every_width_and_number_of_rows(kind: str) -> None:
    """Whatever is left over of units, of blocks of outputs and of rows; what lies beyond matrices and inputs is noise and NaN."""
    sizes = (1, 17, 63, 64, 65, 130) if kind == "int8" else (32, 64, 96, 128, 160, 288)
    for size in sizes:
        for count, out in ((1, 1), (2, 3), (3, 4), (4, 5), (5, 8), (11, 13), (50, 61)):
            x = torch.cat([normal(count * size), torch.full((64,), float("nan"))])[: count * size].view(count, size)
            arguments = x, *weights(kind, out, size), normal(out) if out % 2 else None, True
            assert relative_error(few_rows_linear, rows.few_rows_linear, arguments) <= 1e-5, (size, count, out)


@kinds
def test_sums_of_integers_are_exact(kind: str) -> None:
    """Inputs that are multiples of their scale, the largest ones of both signs: nothing overflows, and nothing is rounded."""
    size, out = 512, 7
    weight, scales = weights(kind, out, size)
    x = torch.randint(0, 2, (3, size), generator=generator()) * 254.0 - 127
    weight[0] = 127 if kind == "int8" else 255
    weight[1] = -128 if kind == "int8" else 0
    x[0], x[1] = 127, -127
    scales = torch.ones_like(scales)
    right = x.double() @ widened(weight, scales, torch.float64, exact=True).T
    assert torch.equal(rows.few_rows_linear(x, weight, scales, None, True).double(), right)


@kinds
def test_a_row_depends_on_itself_only(kind: str, threads: None) -> None:
    """Alone, among others and on several threads; zeros give zeros, and NaN and infinity stay in their row."""
    weight, scales = weights(kind, 37, 160)
    x = normal(61, 160)  # as vectors of rows, of which the last is partly filled
    x[5] = 0
    torch.set_num_threads(1)
    whole = rows.few_rows_linear(x, weight, scales, None, True)
    assert whole[5].abs().max() == 0
    for row in range(len(x)):
        assert torch.equal(rows.few_rows_linear(x[row : row + 1], weight, scales, None, True)[0], whole[row])
    for count in (2, 3):
        torch.set_num_threads(count)
        assert torch.equal(rows.few_rows_linear(x, weight, scales, None, True), whole)
    x[3, 159], x[7, 0] = float("nan"), float("inf")
    made = rows.few_rows_linear(x, weight, scales, None, True)
    others = [row for row in range(61) if row not in (3, 7)]
    assert torch.equal(made[others], whole[others])
    assert not made[[3, 7]].isfinite().any()


def test_inputs_are_rounded_by_row_or_by_group() -> None:
    """A large value costs the precision of those that share its scale, and of no others."""
    x = torch.full((1, 64), 0.3)
    x[0, 40] = 1000.0
    by_group = rounded_inputs(x, torch.empty(1, 32, dtype=torch.uint8))
    assert torch.equal(by_group[:, :32], x[:, :32])
    assert by_group[0, 32:].count_nonzero() == 1
    assert rounded_inputs(x, torch.empty(1, 64, dtype=torch.int8)).count_nonzero() == 1


def quantized(kind: str, matrix: Matrix) -> Matrix:
    if kind != "int8":
        if matrix.weight.shape[1] % 32:
            return matrix
        values, scales = quantized_int4(matrix.weight)
        if kind != "int4":
            zeros = torch.randint(4, 12, scales.shape, generator=generator(5)).to(torch.bfloat16)
            scales = torch.stack([scales, zeros], 1)
        return Matrix(values, scales, matrix.bias, int8_inputs=True)
    scales = matrix.weight.float().abs().amax(1) / 127
    return Matrix((matrix.weight / scales.unsqueeze(1)).round().to(torch.int8), scales, matrix.bias, int8_inputs=True)


def arguments_of(kind: str, counts: list[int] | None) -> list[Any]:
    sizes = {"hidden": 300, "head_dim": 18} if kind == "int8" else {"hidden": 384, "head_dim": 32}
    arguments = list(
        decoder_stack.example(
            torch.float32, generator(3), **sizes, heads=6, kv_heads=2, lengths=[1, 40, 7, 16, 17], counts=counts,
            experts=5, shared=True, bias=True,
        )
    )  # fmt: skip
    stack: DecoderStack = arguments[8]
    for layer in stack.layers:
        assert isinstance(layer.mixture, MixtureWeights)
        assert layer.dense is not None
        layer.qkv, layer.output = quantized(kind, layer.qkv), quantized(kind, layer.output)
        pairs = [(quantized(kind, first), quantized(kind, second)) for first, second in layer.mixture.experts]
        layer.mixture.experts, layer.dense = pairs, (quantized(kind, layer.dense[0]), quantized(kind, layer.dense[1]))
    assert stack.layers[0].qkv.int8_inputs
    return arguments


def copied(arguments: list[Any], some: list[int] | None = None) -> list[Any]:
    made = [each.clone() if isinstance(each, torch.Tensor) else each for each in arguments]
    if some is not None:
        made[:5] = [each[some] for each in made[:5]]
    return made


@kinds
def test_decode_steps(kind: str, threads: None) -> None:
    """A value on the edge between two integers may be rounded either way, so that steps agree less closely than products."""
    arguments = arguments_of(kind, None)
    assert relative_error(decoder_stack.decode_layers, decoder.decode_layers, tuple(arguments)) < 5e-3
    whole = decoder.decode_layers(*copied(arguments))[0]
    for row in range(5):
        assert torch.equal(decoder.decode_layers(*copied(arguments, [row]))[0][0], whole[row])
    for count in (2, 3):
        torch.set_num_threads(count)
        assert torch.equal(decoder.decode_layers(*copied(arguments))[0], whole)


def with_float_inputs(stack: DecoderStack) -> DecoderStack:
    def plain(matrix: Matrix) -> Matrix:
        return evolve(matrix, int8_inputs=False)

    layers = []
    for layer in stack.layers:
        assert layer.dense is not None
        assert layer.mixture is not None
        experts = [(plain(first), plain(second)) for first, second in layer.mixture.experts]
        dense, mixture = (plain(layer.dense[0]), plain(layer.dense[1])), evolve(layer.mixture, experts=experts)
        layers.append(evolve(layer, qkv=plain(layer.qkv), output=plain(layer.output), dense=dense, mixture=mixture))
    return evolve(stack, layers=layers)


@kinds
def test_prompts(kind: str, threads: None) -> None:
    """Prompts have inputs of 8 bits as decode steps do, or, where pairs of bfloat16 are multiplied as fast, those of the same
    weights without integers. A position depends neither on the other requests nor on threads.
    """
    arguments = arguments_of(kind, [1, 30, 2, 16, 17])
    whole = decoder.prefill_layers(*copied(arguments))[0]
    if instruction_set() in ("avx2", "avx512"):
        assert relative_error(decoder_stack.prefill_layers, decoder.prefill_layers, tuple(arguments)) < 5e-3
    else:
        arguments[8] = with_float_inputs(arguments[8])
        assert relative_error(decoder_stack.prefill_layers, decoder.prefill_layers, tuple(arguments)) < 2e-3
        assert torch.equal(decoder.prefill_layers(*copied(arguments))[0], whole)
    for some in ([0], list(range(1, 31)), [31, 32], list(range(49, 66))):
        assert torch.equal(decoder.prefill_layers(*copied(arguments, some))[0], whole[some])
    for count in (2, 3):
        torch.set_num_threads(count)
        assert torch.equal(decoder.prefill_layers(*copied(arguments))[0], whole)


@kinds
def test_single_positions_among_prompts(kind: str) -> None:
    """Decodes that are computed in one call with a prompt have the same products; sums of attention are in another order."""
    if instruction_set() not in ("avx2", "avx512"):
        pytest.skip("prompts have inputs in bfloat16 here")
    alone, among = (copied(arguments_of(kind, None)) for _ in range(2))
    expected, made = decoder.decode_layers(*alone)[0], decoder.prefill_layers(*among)[0]
    assert (expected - made).abs().max() < 1e-5 * expected.abs().max()
    assert torch.equal(
        alone[7][0], among[7][0]
    )  # values of the first layer, which are products of the inputs, bit for bit
