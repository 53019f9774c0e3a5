"""Weights of 8 bits with a scale per output: products of some rows, experts, and whole decode steps."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from omni_torch.operations.comparison import BOUNDS, relative_error
from omni_torch.operations.decoder_stack import DecoderStack, decode_layers, example
from omni_torch.operations.experts import experts
from omni_torch.operations.few_rows import Matrix, few_rows_linear
from omni_torch.quantization.quantized_values import FLOAT8, quantized_float8, quantized_int8

ROUNDED = {torch.int8: quantized_int8, FLOAT8: quantized_float8}
KINDS = pytest.mark.parametrize("kind", ROUNDED, ids=str)


@pytest.fixture
def products(device: str) -> Any:
    return import_module("omni_kernels.narrow_products")


def normal(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator(device).manual_seed(sum(shape)), device=device)


@KINDS
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 64, 70])
@pytest.mark.parametrize(("out", "size"), [(64, 256), (37, 29), (130, 300), (1, 16)])
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_many_shapes(
    kind: torch.dtype, rows: int, out: int, size: int, bias: bool, products: Any, device: str
) -> None:
    values, scales = ROUNDED[kind](normal(device, out, size))
    added = normal(device, out) if bias else None
    arguments = normal(device, rows, size), values, scales, added
    assert relative_error(few_rows_linear, products.few_rows_linear, arguments) <= BOUNDS["bfloat16"] / 4
    assert (
        relative_error(few_rows_linear, products.few_rows_linear, (arguments[0].bfloat16(), *arguments[1:]))
        <= BOUNDS["bfloat16"]
    )


@KINDS
def test_a_rows_result_does_not_depend_on_the_others(kind: torch.dtype, products: Any, device: str) -> None:
    if device != "cuda":
        pytest.skip("no GPU; the interpreter's products are NumPy's, whose sums depend on the place of a row")
    values, scales = ROUNDED[kind](normal(device, 96, 512))
    x = normal(device, 40, 512)
    together = products.few_rows_linear(x, values, scales)
    for rows in (slice(0, 1), slice(3, 19), slice(7, 40)):
        assert torch.equal(products.few_rows_linear(x[rows], values, scales), together[rows])


@KINDS
def test_nothing_beyond_the_ends_is_read(kind: torch.dtype, products: Any, device: str) -> None:
    """The operands are views in memory that holds NaN, or the largest values, everywhere else."""
    values, scales = ROUNDED[kind](normal(device, 37, 29))
    x = normal(device, 3, 29)
    expected = few_rows_linear.reference(x, values, scales)
    largest = 127 if kind == torch.int8 else math.nan
    wide = torch.full((50, 40), largest, device=device).to(kind)
    wide[:37, :29] = values
    inputs = torch.full((9, 40), math.nan, device=device)
    inputs[:3, :29] = x
    around = torch.full((80,), math.nan, device=device)
    around[:37] = scales
    made = products.few_rows_linear(inputs[:3, :29], wide[:37, :29], around[:37])
    torch.testing.assert_close(made, expected, rtol=1e-2, atol=1e-2)


@KINDS
def test_shapes_before_the_inputs_are_kept_and_no_rows_are_none(kind: torch.dtype, products: Any, device: str) -> None:
    values, scales = ROUNDED[kind](normal(device, 32, 64))
    assert products.few_rows_linear(normal(device, 2, 3, 64), values, scales).shape == (2, 3, 32)
    assert products.few_rows_linear(normal(device, 0, 64), values, scales).shape == (0, 32)


@pytest.mark.parametrize("arguments", ["wide", "int8 inputs", "groups"])
def test_other_weights_are_left_to_the_reference(arguments: str, products: Any, device: str) -> None:
    x, weight = normal(device, 3, 64), normal(device, 32, 64)
    values, scales = quantized_int8(weight)
    given: dict[str, tuple[Any, ...]] = {
        "wide": (x, weight),
        "int8 inputs": (x, values, scales, None, True),
        "groups": (x, values, torch.full((32, 2), 1e-2, device=device).bfloat16()),
    }
    made = products.few_rows_linear(*given[arguments])
    assert torch.equal(made, few_rows_linear.reference(*given[arguments]))


@KINDS
@pytest.mark.parametrize("rows", [1, 3, 40, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_mixtures_of_experts(kind: torch.dtype, rows: int, dtype: torch.dtype, device: str) -> None:
    kernel = import_module("omni_kernels.experts").experts
    weights, stacks, scales = torch.rand(rows, 2, device=device).to(dtype), [], []
    for shape in ((6, 2 * 40, 72), (6, 72, 40)):
        values, each = ROUNDED[kind](normal(device, *shape).flatten(0, 1) / shape[2] ** 0.5)
        stacks.append(values.view(shape))
        scales.append(each.view(shape[:2]))
    chosen = torch.rand(rows, 6, device=device).argsort(-1)[:, :2].contiguous()
    x = normal(device, rows, 72).to(dtype)
    bound = BOUNDS[str(dtype).removeprefix("torch.")]
    assert relative_error(experts, kernel, (x, weights, chosen, *stacks, 0, None, *scales)) <= bound
    held = [each[2:5] for each in (*stacks, *scales)]  # those of a rank
    assert relative_error(experts, kernel, (x, weights, chosen, *held[:2], 2, 6, *held[2:])) <= bound


def narrowed(stack: DecoderStack, kind: torch.dtype) -> DecoderStack:
    """The same decoder with weights of 8 bits, but for routers and gates."""

    def narrow(matrix: Matrix) -> Matrix:
        return Matrix(*ROUNDED[kind](matrix.weight), matrix.bias)

    for layer in stack.layers:
        layer.qkv, layer.output = narrow(layer.qkv), narrow(layer.output)
        if layer.dense is not None:
            layer.dense = narrow(layer.dense[0]), narrow(layer.dense[1])
        if layer.mixture is not None:
            layer.mixture.experts = [(narrow(first), narrow(second)) for first, second in layer.mixture.experts]
    return stack


@KINDS
@pytest.mark.parametrize(("single", "lengths"), [(0, [1, 40, 7]), (8, [5])], ids=["several rows", "a row alone"])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"experts": 40, "shared": True},
        {"hidden": 50, "heads": 3, "kv_heads": 1, "head_dim": 14, "experts": 5, "bias": True},
    ],
    ids=str,
)
def test_decode_steps(
    kind: torch.dtype,
    single: int,
    sizes: dict[str, Any],
    lengths: list[int],
    layers: Any,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "SINGLE_ROWS", single)
    shape = {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, **sizes}
    *arguments, stack, capture = example(
        torch.bfloat16, torch.Generator(device).manual_seed(3), lengths=lengths, **shape
    )
    arguments = [*arguments, narrowed(stack, kind), capture]
    monkeypatch.setattr(layers.operation, "reference", None)  # the step is the kernels' own
    made = layers.decode_layers(*(each.clone() if isinstance(each, torch.Tensor) else each for each in arguments))
    monkeypatch.undo()
    expected = decode_layers.reference(*_in_double(arguments))
    for each, right in zip(made, expected, strict=True):
        error = float((each.double() - right).norm() / right.norm())
        assert error <= (2.5 if device == "cpu" else 1) * BOUNDS["bfloat16"]


def _in_double(arguments: list[Any]) -> list[Any]:
    return [
        each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in arguments
    ]


@KINDS
def test_scales_are_of_the_experts_that_were_chosen(kind: torch.dtype, layers: Any, device: str) -> None:
    """One expert's scales are a thousand times those of the others: a wrong one is seen."""
    kernel = import_module("omni_kernels.experts").experts
    gate_up, down = (ROUNDED[kind](normal(device, 3 * out, size)) for out, size in ((32, 24), (24, 16)))
    stacks = gate_up[0].view(3, 32, 24), down[0].view(3, 24, 16)
    scales = gate_up[1].view(3, 32).clone(), down[1].view(3, 24).clone()
    scales[1][1] *= 1000
    x, chosen = normal(device, 2, 24), torch.tensor([[0], [1]], device=device)
    made = kernel(x, torch.ones(2, 1, device=device), chosen, *stacks, 0, None, *scales)
    for row, expert in enumerate((0, 1)):
        gate, up = F.linear(x[row], stacks[0][expert].float() * scales[0][expert].unsqueeze(1)).chunk(2)
        right = F.linear(F.silu(gate) * up, stacks[1][expert].float() * scales[1][expert].unsqueeze(1))
        torch.testing.assert_close(made[row], right, rtol=1e-3, atol=1e-3 * float(right.abs().max()))
