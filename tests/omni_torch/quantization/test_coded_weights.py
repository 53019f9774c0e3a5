"""Weights in 12 bits are the bfloat16 weights, bit for bit, whatever they are; those that would not fit are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_torch.quantization import coded_weights
from omni_torch.quantization.coded_weights import LARGEST_SIZE, RARE_SHARE, coded_bfloat16, decoded_bfloat16


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bits(weight: torch.Tensor) -> torch.Tensor:
    return weight.to(torch.bfloat16).view(torch.int16)


def assert_same(weight: torch.Tensor) -> int:
    """Return the number of rare weights."""
    coded = coded_bfloat16(weight)
    assert coded is not None
    codes, words = coded
    out, size = weight.shape
    assert (codes.shape, codes.dtype) == ((out, size * 3 // 2), torch.uint8)
    assert (words.shape, words.dtype) == ((out + 1 + out * size // RARE_SHARE,), torch.int32)
    assert torch.equal(decoded_bfloat16(codes, words).view(torch.int16), bits(weight))
    return int(words[out]) >> 8


@pytest.mark.parametrize("shape", [(1, 128), (3, 384), (64, 512), (7, LARGEST_SIZE)], ids=str)
@pytest.mark.parametrize("scale", [1e-38, 1e-3, 1.0, 1e38])
def test_normal_weights_come_back(shape: tuple[int, int], scale: float) -> None:
    """At 1e-38 exponents end at 0, at 1e38 some weights are infinite."""
    weight = drawn(*shape) * scale
    weight[:, 3] = 0.0
    weight[:, 5] = -0.0
    if shape[0] * shape[1] < 2 * RARE_SHARE:  # room for one rare weight, which these few do not need
        weight[:, 6:] = scale
    assert_same(weight)


def test_rare_weights_come_back() -> None:
    """Far outside of the exponents that have codes, at both ends of outputs, of either sign, and no numbers."""
    weight = drawn(40, 256)
    rare = {
        (0, 0): 1e30,
        (0, 255): -1e30,
        (7, 31): -1e-30,
        (7, 32): 1e-30,
        (39, 255): float("-inf"),
        (20, 1): float("nan"),
    }
    for place, value in rare.items():
        weight[place] = value
    usual = assert_same(drawn(40, 256))
    assert usual < 5
    assert len(rare) <= assert_same(weight) <= len(rare) + usual


def test_each_output_has_exponents_of_its_own() -> None:
    weight = drawn(256, 256) * torch.logspace(-30, 30, 256).unsqueeze(1)
    assert assert_same(weight) < 40


@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 40))
def test_any_bits_come_back(seed: int, first: int, spread: int) -> None:
    """Any mantissas and signs, and exponents from a range; what is refused has more rare weights than there is room for."""
    generator = torch.Generator().manual_seed(seed)
    exponents = (first + torch.randint(0, spread + 1, (3, 128), generator=generator)).clamp(max=255)
    rest = torch.randint(0, 256, (3, 128), generator=generator)
    whole = ((rest >> 7) << 15) | (exponents << 7) | (rest & 127)
    weight = torch.where(whole >= 1 << 15, whole - (1 << 16), whole).to(torch.int16).view(torch.bfloat16)
    if spread < coded_weights.WINDOW or coded_bfloat16(weight) is not None:
        assert_same(weight)


def test_too_many_rare_weights_are_refused() -> None:
    weight = drawn(32, 256)
    room = 32 * 256 // RARE_SHARE
    weight.view(-1)[:: 32 * 256 // (room + 1)] = 1e30
    assert coded_bfloat16(weight) is None
    assert coded_bfloat16(torch.exp2(torch.linspace(-100, 100, 256)).repeat(32, 1)) is None


def test_parts_of_a_large_weight_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = drawn(50, 128)
    weight[::9, 0] = 1e20
    whole = coded_bfloat16(weight)
    assert whole is not None
    for step in (1, 128, 3 * 128):
        monkeypatch.setattr(coded_weights, "_VALUES_AT_ONCE", step)
        parts = coded_bfloat16(weight)
        assert parts is not None
        assert all(map(torch.equal, parts, whole))


def test_a_weight_without_values_has_the_shapes() -> None:
    made, described = coded_bfloat16(drawn(33, 128)), coded_bfloat16(torch.empty(33, 128, device="meta"))
    assert made is not None
    assert described is not None
    for one, other in zip(made, described, strict=True):
        assert (one.shape, one.dtype, other.is_meta) == (other.shape, other.dtype, True)
