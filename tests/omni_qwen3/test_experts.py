"""Every way to compute the experts gives the same mixture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve

from omni_qwen3.config import DecoderConfig
from omni_qwen3.layers import Experts
from omni_torch.operations.experts import grouped
from omni_torch.quantization.packed_linear import packed
from omni_torch.quantization.quantized_linear import Int8WeightLinear, pack_for

CONFIG = DecoderConfig(
    vocab_size=8, hidden_size=64, layers=1, heads=1, kv_heads=1, head_dim=64, intermediate_size=1, norm_eps=1e-6,
    rope_theta=1e6, mrope_section=(), max_positions=8, experts=6, experts_per_token=3, moe_intermediate_size=32,
)  # fmt: skip


def drawn(config: DecoderConfig) -> Experts:
    experts = Experts(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in experts.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    return experts.requires_grad_(False)


def routed(rows: int, config: DecoderConfig) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, weights and choices; the last expert is never chosen."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, config.hidden_size, generator=generator)
    scores = torch.rand(rows, config.experts - 1, generator=generator)
    weights, chosen = scores.softmax(-1).topk(config.experts_per_token)
    return x, weights, chosen


def mixture(experts: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Token by token."""
    rows = []
    for token, shares, numbers in zip(x, weights, chosen.tolist(), strict=True):
        parts = []
        for number in numbers:
            gate, up = (experts.gate_up_proj[number] @ token).chunk(2)
            parts.append(experts.down_proj[number] @ (F.silu(gate) * up))
        rows.append(shares @ torch.stack(parts))
    return torch.stack(rows)


@pytest.mark.parametrize("rows", [1, 2, 17])
def test_all_implementations_agree(rows: int) -> None:
    experts, inputs = drawn(CONFIG), routed(rows, CONFIG)
    expected = mixture(experts, *inputs)
    torch.testing.assert_close(experts(*inputs), expected, rtol=1e-4, atol=1e-5)
    if hasattr(F, "grouped_mm"):
        weights = experts.gate_up_proj, experts.down_proj
        torch.testing.assert_close(grouped(*inputs, *weights), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(packed(torch.zeros(512, 512)) is None, reason="this machine has no packed kernels")
@pytest.mark.parametrize("rows", [1, 9])
def test_packed_experts_agree_and_free_the_plain_weights(rows: int) -> None:
    config = evolve(CONFIG, hidden_size=512, moe_intermediate_size=512)
    experts, inputs = drawn(config), routed(rows, config)
    expected = mixture(experts, *inputs)
    experts.pack_weights()
    assert sum(each.numel() for each in experts.parameters()) == 0
    torch.testing.assert_close(experts(*inputs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="no int8 kernels here")
@pytest.mark.parametrize("rows", [1, 9, 80])
def test_quantized_experts_are_close_and_free_the_plain_weights(rows: int) -> None:
    config = evolve(CONFIG, hidden_size=256, moe_intermediate_size=128)
    experts, inputs = drawn(config), routed(rows, config)
    expected = mixture(experts, *inputs)
    experts.pack_weights(pack_for("int8_weight_only", "cpu"))
    assert sum(each.numel() for each in experts.parameters()) == 0
    assert (experts(*inputs) - expected).norm() / expected.norm() < 0.02


def held_by(experts: Experts, config: DecoderConfig, held: range) -> Experts:
    """The layer of a rank that holds some of the experts."""
    made = Experts(evolve(config, local_experts=held)).requires_grad_(False)
    made.gate_up_proj.data.copy_(experts.gate_up_proj[held.start : held.stop])
    made.down_proj.data.copy_(experts.down_proj[held.start : held.stop])
    return made


PATHS = {
    "operation": CONFIG,
    "plain experts of another activation": evolve(CONFIG, activation="gelu"),
    "packed": evolve(CONFIG, hidden_size=256, moe_intermediate_size=128),
}


@pytest.mark.parametrize("rows", [1, 2, 17])
@pytest.mark.parametrize("path", PATHS)
def test_ranks_compute_their_experts_only(path: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each choice is computed by one rank, and the ranks' outputs sum to the mixture."""
    config = PATHS[path]
    whole, (x, weights, chosen) = drawn(config), routed(rows, config)
    computed: list[int] = []
    name = "_packed_expert" if path == "packed" else "_plain_expert"
    plain = getattr(Experts, name)

    def counted(self: Experts, number: int, given: torch.Tensor) -> Any:
        computed.append(len(given))
        return plain(self, number, given)

    monkeypatch.setattr(Experts, name, counted)
    total = torch.zeros_like(x)
    for held in (range(3), range(3, 6)):
        part = held_by(whole, config, held)
        if path == "packed":
            part.pack_weights(lambda weight, bias: Int8WeightLinear(weight, bias))
        total += part(x, weights, chosen)
    if path == "packed":
        whole.pack_weights(lambda weight, bias: Int8WeightLinear(weight, bias))
    shared = sum(computed)
    torch.testing.assert_close(total, whole(x, weights, chosen), rtol=1e-4, atol=1e-4)
    assert shared == (0 if path == "operation" else chosen.numel())


@pytest.mark.parametrize("rows", [1, 17])
def test_experts_of_other_ranks_are_in_no_group(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grouped products leave what they do not compute as it was in memory, here NaN."""
    whole, (x, weights, chosen) = drawn(CONFIG), routed(rows, CONFIG)
    expected = mixture(whole, x, weights, chosen)
    product, groups = F.grouped_mm, []

    def spoilt(rows: torch.Tensor, *arguments: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        groups.append(int(offs[-1]))
        return product(rows, *arguments, offs=offs).index_fill_(0, torch.arange(int(offs[-1]), len(rows)), torch.nan)

    monkeypatch.setattr(F, "grouped_mm", spoilt)
    total = torch.zeros_like(x)
    for first in (0, 3):
        mine = slice(first, first + 3)
        total += grouped(x, weights, chosen, whole.gate_up_proj[mine], whole.down_proj[mine], first, 6)
    assert groups[0] + groups[2] == chosen.numel(), "each choice is in a group of one rank"
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_without_an_expert_of_the_rank_are_zero(rows: int) -> None:
    part = held_by(drawn(CONFIG), CONFIG, range(5, 6))  # which no row chooses
    assert torch.equal(part(*routed(rows, CONFIG)), torch.zeros(rows, 64))


def test_small_experts_stay_plain() -> None:
    experts = drawn(CONFIG)
    experts.pack_weights()
    assert experts.gate_up_proj.numel() > 0
