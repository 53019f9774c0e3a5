"""Packed weights compute what plain ones compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from omni_torch.operations.few_rows import BFloat16Embedding, BFloat16Linear
from omni_torch.quantization import packed_linear
from omni_torch.quantization.packed_linear import PackedLinear, pack_linears, packed, product

needs_kernels = pytest.mark.skipif(
    packed(torch.zeros(512, 512)) is None, reason="this machine has no packed kernels; plain ones are used"
)


@needs_kernels
@pytest.mark.parametrize("rows", [1, 2, 7, 33, 200])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_a_packed_product_is_the_product(rows: int, dtype: torch.dtype, bound: float) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(640, 384, generator=generator).to(dtype)
    x, bias = torch.randn(rows, 384, generator=generator).to(dtype), torch.randn(640, generator=generator).to(dtype)
    matrix = packed(weight)
    if matrix is None:
        pytest.skip(f"no packed kernel for {dtype} here")
    exact = x.double() @ weight.double().T + bias.double()
    error = (product(x, matrix, bias).double() - exact).norm() / exact.norm()
    assert error < bound


@needs_kernels
def test_a_row_does_not_depend_on_other_rows() -> None:
    matrix, x = packed(torch.randn(512, 512)), torch.randn(8, 512)
    together = product(x, matrix)
    for row in range(8):
        torch.testing.assert_close(product(x[row : row + 1], matrix)[0], together[row], rtol=1e-5, atol=1e-5)


@needs_kernels
def test_large_layers_are_replaced_and_small_ones_stay() -> None:
    model = nn.Sequential(
        nn.Linear(512, 512), nn.ModuleDict({"inner": nn.Linear(512, 1024, bias=False)}), nn.Linear(8, 8)
    )
    x = torch.randn(3, 512)
    with torch.inference_mode():
        expected = model[0](x), model[1]["inner"](x)  # type: ignore[index]
        pack_linears(model)
        torch.testing.assert_close(model[0](x), expected[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model[1]["inner"](x), expected[1], rtol=1e-4, atol=1e-4)  # type: ignore[index]
    assert isinstance(model[0], PackedLinear)
    assert type(model[2]) is nn.Linear
    assert sum(each.numel() for each in model.parameters()) == 8 * 8 + 8, "the plain weights are still held"


def test_a_layer_with_two_names_is_replaced_by_one_layer() -> None:
    network = nn.Module()
    network.embedding = network.again = nn.Embedding(600, 256, dtype=torch.bfloat16)
    network.linear = network.part = nn.Linear(256, 600, bias=False, dtype=torch.bfloat16)
    network.outer = nn.Sequential(network.linear)
    packed_linear.pack_embeddings(network, packed_linear.keep_bfloat16)
    packed_linear.pack_linears(network, packed_linear.keep_bfloat16)
    assert isinstance(network.embedding, BFloat16Embedding)
    assert network.again is network.embedding
    assert isinstance(network.linear, BFloat16Linear)
    assert network.part is network.outer[0] is network.linear


def test_without_the_kernels_everything_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "_works", lambda dtype: False)
    model = nn.Sequential(nn.Linear(512, 512))
    pack_linears(model)
    assert type(model[0]) is nn.Linear


def test_kernels_that_are_missing_or_wrong_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    works = packed_linear._works.__wrapped__
    monkeypatch.setattr(packed_linear, "product", lambda x, matrix: torch.zeros(2, 8))
    assert not works(torch.float32)

    def missing(x: torch.Tensor, matrix: object) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(packed_linear, "product", missing)
    assert not works(torch.float32)
