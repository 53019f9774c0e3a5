"""Every way to compute the experts gives the same mixture."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve

from omni_qwen3.config import DecoderConfig
from omni_qwen3.layers import Experts
from omni_torch.experts import grouped
from omni_torch.packed_linear import packed
from omni_torch.quantized_linear import pack_for

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


def test_small_experts_stay_plain() -> None:
    experts = drawn(CONFIG)
    experts.pack_weights()
    assert experts.gate_up_proj.numel() > 0
