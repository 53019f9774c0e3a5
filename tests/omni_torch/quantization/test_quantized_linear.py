"""Layers with int8 weights compute nearly the same as plain ones, and reject machines without kernels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiers import few
from torch import nn

from omni_core.errors import ConfigError
from omni_torch.operations.few_rows import widened
from omni_torch.quantization import quantized_linear
from omni_torch.quantization.packed_linear import pack_decoder, pack_linears
from omni_torch.quantization.quantized_linear import LEAST_VALUES, MOST_ROWS, QUANTIZATIONS, CodedLinear, pack_for
from omni_torch.quantization.quantized_values import quantized_int4

BOUNDS = {
    "bfloat16_lossless": 0.005,
    "int8_weight_only": 0.01,
    "int8_dynamic_activation_int8_weight": 0.015,
    "int8_weight_only_groups": 0.007,
    "int4_weight_only": 0.1,
    "int8_dynamic_activation_int4_weight": 0.1,
}
"""Relative errors of a product of normal numbers: rounding to bfloat16 is 0.2 %, of int8 weights 0.7 %, and of inputs as much again; of
4-bit weights 9 %.
"""

MINE = [name for name, each in QUANTIZATIONS.items() if quantized_linear._works(each)]
"""The schemes that this machine supports."""

needs_kernels = pytest.mark.skipif(not MINE, reason="this machine has no int8 kernels")
every = pytest.mark.parametrize("name", MINE)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="reads /proc")
def test_probes_match_the_instructions_of_this_cpu() -> None:
    """Run in a subprocess: otherwise a kernel that crashes would end the test run."""
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    flags = set(found[1].split()) if found else set()
    assert ("int8_weight_only" in MINE) == ("avx2" in flags)
    assert ("int8_dynamic_activation_int8_weight" in MINE) == bool(flags & {"avx512_vnni", "avx_vnni"})


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm())


def test_every_name_has_a_bound() -> None:
    assert BOUNDS.keys() == QUANTIZATIONS.keys()


@every
@pytest.mark.parametrize("rows", few([1, 2, 7, MOST_ROWS, MOST_ROWS + 1, 200], 2))
@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16, torch.float16], 2))
def test_a_product_is_close_whatever_the_scales_of_channels(name: str, rows: int, dtype: torch.dtype) -> None:
    weight = drawn(640, 384) * torch.logspace(-3, 2, 640).unsqueeze(1)  # every output channel of another magnitude
    x = drawn(rows, 384, seed=1) * torch.logspace(-2, 1, rows).unsqueeze(1)
    bias, x = drawn(640, seed=2), x.to(dtype)
    made = QUANTIZATIONS[name].layer(weight, bias.to(dtype))(x)
    assert made.dtype == dtype
    channels = weight.abs().amax(1).double()
    exact = x.double() @ weight.double().T + bias.to(dtype).double()
    assert error(made.double() / channels, exact / channels) < BOUNDS[name]


@every
def test_shapes_are_kept_and_nothing_may_come(name: str) -> None:
    layer = QUANTIZATIONS[name].layer(drawn(64, 128), None)
    assert layer(torch.zeros(2, 3, 128)).abs().max() == 0
    assert layer(torch.zeros(0, 128)).shape == (0, 64)
    assert layer(torch.zeros(2, 0, 128)).shape == (2, 0, 64)


@every
def test_a_channel_of_zeros_and_a_row_of_zeros_give_zeros(name: str) -> None:
    weight, x = drawn(64, 128), drawn(3, 128, seed=1)
    weight[5], x[1] = 0, 0
    made = QUANTIZATIONS[name].layer(weight, None)(x)
    assert made[:, 5].abs().max() == 0
    assert made[1].abs().max() == 0
    assert made[0].abs().max() > 0


@every
def test_a_row_does_not_depend_on_its_neighbours(name: str) -> None:
    """Also beside a row a thousand times larger."""
    layer, x = QUANTIZATIONS[name].layer(drawn(512, 512), None), drawn(8, 512, seed=1)
    x[3] *= 1000
    together = layer(x)
    for row in range(8):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])


@every
@pytest.mark.parametrize("offset", few([1, 8, 13], 1))
def test_inputs_may_be_unaligned(name: str, offset: int) -> None:
    """The kernel of int8 weights needs aligned rows, and does not check."""
    layer = QUANTIZATIONS[name].layer(drawn(64, 128), None)
    x = drawn(2, 128, seed=1).to(torch.bfloat16)
    moved = torch.empty(300, dtype=torch.bfloat16)[offset : offset + 256].view(2, 128).copy_(x)
    assert torch.equal(layer(moved), layer(x))
    assert torch.equal(layer(x.T.contiguous().T), layer(x))


@every
def test_a_model_shrinks_to_a_quarter(name: str) -> None:
    model = nn.Sequential(
        nn.Linear(512, 512), nn.ModuleDict({"inner": nn.Linear(512, 1024, bias=False)}), nn.Linear(8, 8)
    )
    x = drawn(3, 512)
    with torch.inference_mode():
        expected = model[0](x), model[1]["inner"](x)  # type: ignore[index]
        plain = model[2]
        pack_linears(model, pack_for(name, "cpu"))
        assert error(model[0](x), expected[0].double()) < BOUNDS[name]
        assert error(model[1]["inner"](x), expected[1].double()) < BOUNDS[name]  # type: ignore[index]
    assert model[2] is plain, "so few weights are not worth it"
    assert sum(each.numel() for each in model.parameters()) == 8 * 8 + 8, "the plain weights are still held"


def test_int4_values_and_scales() -> None:
    """Values that 4 bits hold stay; others get the scale of the least error, never a worse one than the largest magnitude gives."""
    exact = torch.randint(-8, 8, (3, 64), generator=torch.Generator().manual_seed(0)).float()
    exact[:, ::32] = torch.tensor([-8.0, 7.0])[torch.arange(2)]
    exact[:, 1::32] = -8.0
    values, scales = quantized_int4(exact)
    assert values.shape == (3, 32)
    assert values.dtype == torch.uint8
    assert torch.equal(widened(values, scales, torch.float32), exact)
    weight = drawn(7, 96)
    made = widened(*quantized_int4(weight), torch.float32)
    groups = weight.view(7, 3, 32)
    plain = (groups.abs().amax(-1, keepdim=True) / 8).to(torch.bfloat16).float()
    worse = ((groups / plain).round().clamp(-8, 7) * plain).view(7, 96)
    assert (made - weight).norm() < (worse - weight).norm()


@needs_kernels
def test_weights_whose_exponents_do_not_fit_stay_plain() -> None:
    quantize = pack_for("bfloat16_lossless", "cpu")
    weight = drawn(128, 256)
    made = quantize(weight, None)
    assert isinstance(made, CodedLinear)
    assert torch.equal(made(drawn(20, 256)), nn.functional.linear(drawn(20, 256).bfloat16(), weight.bfloat16()).float())
    spread = torch.exp2(torch.linspace(-60, 60, 256)).expand(128, -1).contiguous()
    assert not isinstance(quantize(spread, None), CodedLinear)


@needs_kernels
def test_widths_that_a_kernel_cannot_read_stay_plain() -> None:
    """A width of 12 makes the kernel of int8 weights read beyond the end."""
    quantize = pack_for("int8_weight_only", "cpu")
    assert quantize(drawn(LEAST_VALUES, 12), None) is None
    large = drawn(1024, 1028)
    assert type(quantize(large, None)) is type(pack_decoder(large))
    assert quantize(drawn(LEAST_VALUES // 16, 16), None) is not None
    assert quantize(drawn(LEAST_VALUES // 16 - 1, 16), None) is None


def test_without_a_name_weights_are_packed() -> None:
    assert pack_for(None, "cuda:0") is pack_decoder


def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(
        ConfigError,
        match=r"quantization: 'int4' is unknown; there are: int8_weight_only, int8_dynamic",
    ):
        pack_for("int4", "cpu")


def test_a_gpu_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"'int4_weight_only' is for stages on a CPU, but this one is on cuda:1; on a GPU"
    ):
        pack_for("int4_weight_only", "cuda:1")


@pytest.mark.parametrize(
    ("setting", "value", "name", "needs"),
    few(
        [
            ("ATEN_CPU_CAPABILITY", "default", "int8_weight_only", "a CPU with AVX2 or AVX-512"),
            ("ONEDNN_MAX_CPU_ISA", "AVX2", "int8_dynamic_activation_int8_weight", "VNNI"),
        ],
        1,
    ),
)
def test_a_machine_whose_kernels_are_missing_or_overflow_is_an_error(
    setting: str, value: str, name: str, needs: str
) -> None:
    """As on older machines, whose int8 kernels sum pairs in 16 bits, and are wrong for extreme values."""
    program = f"from omni_torch.quantization.quantized_linear import pack_for; pack_for({name!r}, 'cpu')"
    run = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, setting: value}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert f"quantization: '{name}' needs" in run.stderr
    assert needs in run.stderr
