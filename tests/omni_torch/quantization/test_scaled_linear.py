"""Layers of 8 bits for a GPU: close to plain ones, exact for weights that were such values, and chosen by name and device."""

from __future__ import annotations

import pytest
import torch
from tiers import few

from omni_core.errors import ConfigError
from omni_torch.operations.experts import experts
from omni_torch.operations.few_rows import few_rows_linear, widened
from omni_torch.operations.kernels import Operation
from omni_torch.placement import budgets, stage_memory
from omni_torch.quantization import quantized_linear, scaled_linear
from omni_torch.quantization.quantized_linear import quantize_for
from omni_torch.quantization.quantized_values import FLOAT8, quantized_float8, quantized_int8
from omni_torch.quantization.scaled_linear import GPU_QUANTIZATIONS, MOST_ROWS, ScaledLinear

BOUNDS = {"int8_weight_only": 0.01, "float8_weight_only": 0.03}
"""Relative errors of a product of normal numbers: a float of 3 bits of fraction is wrong by 2.6 % on average, in whatever magnitude."""

every = pytest.mark.parametrize("name", BOUNDS)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@every
@pytest.mark.parametrize("rows", few([0, 1, MOST_ROWS, MOST_ROWS + 1], 2))
@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16, torch.float16], 2))
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_close_whatever_the_scales_of_channels(
    name: str, rows: int, dtype: torch.dtype, bias: bool
) -> None:
    channels = torch.logspace(-3, 2, 64).unsqueeze(1)
    weight, x = drawn(64, 96) * channels, drawn(2, rows, 96, seed=1).to(dtype)
    added = drawn(64, seed=2) if bias else None
    layer = GPU_QUANTIZATIONS[name](weight.to(dtype), None if added is None else added.to(dtype))
    made = layer(x)
    assert made.dtype == dtype
    assert made.shape == (2, rows, 64)
    exact = x.double() @ weight.double().T + (0 if added is None else added.double())
    error = ((made.double() - exact) / channels.T).norm()
    assert error <= BOUNDS[name] * (exact / channels.T).norm()
    assert rows == 0 or error > 0


@every
def test_a_kernel_gets_few_rows_and_no_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, rows = GPU_QUANTIZATIONS[name](drawn(32, 64), None), []

    def kernel(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        rows.append(len(x))
        return few_rows_linear.reference(x, *rest)

    monkeypatch.setattr(Operation, "replaced", lambda self, device, dtype: True)
    monkeypatch.setattr(scaled_linear, "few_rows_linear", _replaced(kernel))
    few, many = layer(drawn(MOST_ROWS, 64, seed=1)), layer(drawn(MOST_ROWS + 1, 64, seed=1))
    assert rows == [MOST_ROWS]
    torch.testing.assert_close(few, many[:MOST_ROWS], rtol=0.01, atol=0.05)


def _replaced(kernel: object) -> Operation[..., torch.Tensor]:
    made: Operation[..., torch.Tensor] = Operation("few_rows_linear", kernel, lambda dtype, generator: [])  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("through", [torch.float32, torch.bfloat16])
def test_weights_that_were_values_with_scales_have_the_same_values(through: torch.dtype) -> None:
    """A checkpoint in fp8 is widened to the stage's dtype before it is rounded. That loses no value, and of scales what bfloat16 loses."""
    values = (drawn(40, 200) * 200).clamp(-448, 448).to(FLOAT8)
    values[:, 0] = torch.tensor(448.0).to(FLOAT8)
    scales = torch.logspace(-6, 1, 40)
    again, found = quantized_float8((values.float() * scales.unsqueeze(1)).to(through))
    assert torch.equal(again.view(torch.uint8), values.view(torch.uint8))
    torch.testing.assert_close(found, scales, rtol=2**-8 if through == torch.bfloat16 else 1e-6, atol=0)


def test_the_largest_values_are_numbers() -> None:
    """A quotient that is rounded up would be above the largest float of 8 bits, which is NaN."""
    weight = torch.logspace(-30, 30, 3000).view(-1, 1).repeat(1, 2) * torch.tensor([1.0, -1.0])
    values, scales = quantized_float8(weight)
    torch.testing.assert_close(widened(values, scales, torch.float32), weight)


@pytest.mark.parametrize("rounded", [quantized_int8, quantized_float8])
def test_zeros_stay_zeros_and_shapes_are_known_without_values(rounded: scaled_linear.Rounded) -> None:
    weight = drawn(3, 16)
    weight[1] = 0
    values, scales = rounded(weight)
    assert widened(values, scales, torch.float32)[1].abs().max() == 0
    described = rounded(torch.empty(3, 16, device="meta"))
    assert [(each.dtype, each.shape) for each in described] == [(each.dtype, each.shape) for each in (values, scales)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))


@pytest.mark.usefixtures("gpu")
@every
def test_small_weights_and_unaligned_ones_stay(name: str) -> None:
    pack = quantize_for(name, "cuda:0")
    assert isinstance(pack(drawn(128, 64), None), ScaledLinear)
    assert pack(drawn(127, 64), None) is None
    assert pack(drawn(1000, 72), None) is None


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("float8_weight_only", "cpu", "'float8_weight_only' is for stages on a GPU, .* is on cpu; on a CPU there are: int8_weight_only, "),
        ("int4_weight_only", "cuda:1", "'int4_weight_only' is for stages on a CPU, .* on cuda:1; on a GPU there are: int8_weight_only, f"),
        ("fp8", "cuda:0", "'fp8' is unknown; there are: int8_weight_only, .*, float8_weight_only$"),
    ],
)  # fmt: skip
def test_a_name_of_the_other_device_is_refused(name: str, device: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"quantization: {message}"):
        quantize_for(name, device)


def test_a_gpu_without_floats_of_8_bits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ConfigError, match=r"capability 8\.9 or more, that of cuda:0 is 8\.6; use int8_weight_only"):
        quantize_for("float8_weight_only", "cuda:0")
    assert quantize_for("int8_weight_only", "cuda:0") is not None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"'float8_weight_only' needs a GPU, but cuda:0 cannot be used: .*; see `omni doctor`"
    ):
        quantize_for("float8_weight_only", "cuda:0")


def test_the_placement_knows_the_names() -> None:
    """It imports no torch, and repeats them."""
    assert set(budgets.ONE_BYTE) == set(GPU_QUANTIZATIONS)
    assert stage_memory.LEAST_ROUNDED == quantized_linear.LEAST_VALUES


@pytest.mark.parametrize("rounded", [quantized_int8, quantized_float8])
def test_experts_of_float16_do_not_overflow(rounded: scaled_linear.Rounded) -> None:
    made = [rounded(drawn(*shape) * 0.02) for shape in ((2 * 32, 2048), (32, 32))]
    values, scales = ([pair[each].unsqueeze(0) for pair in made] for each in (0, 1))
    x, weights, chosen = drawn(1, 2048, seed=1) * 3, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64)
    x[:, 5] = 300
    half = experts.reference(x.half(), weights.half(), chosen, *values, 0, None, *scales)
    exact = experts.reference(
        x.double(), weights.double(), chosen, *(each.double() for each in values), 0, None, *scales
    )
    assert (half.double() - exact).norm() < 0.01 * exact.norm()


@every
@pytest.mark.parametrize("rows", [3, MOST_ROWS + 1])
def test_sums_of_float16_do_not_overflow(name: str, rows: int) -> None:
    """Values of 8 bits are thousands of times larger than weights; one input is large, as in trained networks."""
    weight, x = drawn(64, 2048) * 0.02, drawn(rows, 2048, seed=1) * 3
    x[:, 5] = 100
    made = GPU_QUANTIZATIONS[name](weight.half(), None)(x.half())
    exact = x.double() @ weight.double().T
    assert (made.double() - exact).norm() < 2 * BOUNDS[name] * exact.norm()
