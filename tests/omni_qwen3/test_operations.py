"""The model's norms, activations and experts are operations: an installed kernel runs in their place, and without one nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from networks import one_shot, reference
from torch import nn

from omni_core.model_runner import CacheAttention
from omni_qwen3.code2wav import Vocoder
from omni_qwen3.config import DecoderConfig, read_config
from omni_qwen3.layers import Attention, Rotary, SparseMLP
from omni_torch.operations import installed_kernels
from omni_torch.operations.experts import experts, route_experts
from omni_torch.operations.kernels import Operation
from omni_torch.operations.norm import RMSNorm
from omni_torch.operations.shared import add_rms_norm, norm_rotary_store, rms_norm, snake_beta, snake_conv


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace an operation's kernel by a counter."""
    changed = []

    def count(operation: Operation[..., Any]) -> list[int]:
        calls = [0]

        def kernel(*args: Any) -> Any:
            calls[0] += 1
            return operation.reference(*args)

        def choose(device: str, dtype: torch.dtype) -> Callable[..., Any]:
            return kernel

        monkeypatch.setattr(operation, "choose", choose)
        monkeypatch.setitem(installed_kernels._installed, operation.name, [object()])
        operation.forget()
        changed.append(operation)
        return calls

    yield count
    for operation in changed:
        operation.forget()


def test_norms_run_the_chosen_kernel(counting: Any) -> None:
    norm = RMSNorm(8, 1e-6)
    nn.init.normal_(norm.weight)
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    alone, added = counting(rms_norm), counting(add_rms_norm)
    normed = norm(x)
    assert torch.equal(normed, nn.functional.rms_norm(x, (8,), norm.weight, 1e-6))
    total, normed = norm.add(x, y)
    assert torch.equal(total, x + y)
    assert torch.equal(normed, nn.functional.rms_norm(x + y, (8,), norm.weight, 1e-6))
    assert (alone, added) == ([1], [1])


def test_a_layer_writes_the_cache_itself_where_attention_says_where_and_computes_the_same_where_not(
    counting: Any,
) -> None:
    config = DecoderConfig(
        vocab_size=9,
        hidden_size=32,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate_size=8,
        norm_eps=1e-6,
        rope_theta=1e4,
        mrope_section=(4, 2, 2),
        max_positions=99,
    )

    class Keeping(CacheAttention):
        def __init__(self) -> None:
            self.keys, self.values = (torch.zeros(9, config.kv_heads, config.head_dim) for _ in range(2))

        def place(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            assert layer == 1
            return torch.tensor([7, 0, 4]), self.keys, self.values

        def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
            return query + self.keys[[7, 0, 4]].sum(1, keepdim=True)

    attention = Attention(config, 1)
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    positions = torch.tensor([[0, 5, 900], [0, 7, 3], [0, 1, 80]])
    cos, sin = Rotary(config)(positions, torch.float32)
    x, own, called = torch.randn(3, config.hidden_size), Keeping(), Keeping()
    calls = counting(norm_rotary_store)
    with torch.inference_mode():
        outputs = attention(x, cos, sin, own), attention(x, cos, sin, lambda *arguments: called(*arguments))
    assert calls == [1]
    assert torch.equal(*outputs)
    assert torch.equal(own.keys, called.keys)
    assert torch.equal(own.values, called.values)
    assert own.keys[[7, 0, 4]].abs().min() > 0
    assert own.values[[1, 2, 3, 5, 6, 8]].abs().max() == 0


def test_the_vocoder_runs_the_chosen_kernels_with_the_checkpoint_s_parameters(
    counting: Any, tiny: dict[str, Path]
) -> None:
    config = read_config(tiny["a"]).vocoder
    assert config is not None
    plain, network = reference(tiny["a"], "vocoder"), Vocoder(str(tiny["a"]))._network
    activations, convolutions = counting(snake_beta), counting(snake_conv)
    codes = torch.randint(0, config.codebook_size, (2, config.codebooks, 5))
    with torch.inference_mode():
        sound, expected = one_shot(network, codes), plain(codes)
    torch.testing.assert_close(sound, expected, atol=1e-5, rtol=0)
    blocks = len(config.rates)
    assert convolutions == [blocks * 3 * 2 + 1], "two in each of a block's residual units, and the last"
    assert activations == [blocks + convolutions[0]], (
        "one before each transposed convolution; the others in the reference"
    )


@pytest.mark.parametrize("normalize", [True, False])
def test_a_mixture_of_experts_runs_the_chosen_kernels(counting: Any, normalize: bool) -> None:
    config = DecoderConfig(
        vocab_size=8, hidden_size=16, layers=1, heads=1, kv_heads=1, head_dim=16, intermediate_size=1, norm_eps=1e-6,
        rope_theta=1e6, mrope_section=(), max_positions=8, experts=6, experts_per_token=3, moe_intermediate_size=8,
    )  # fmt: skip
    block = SparseMLP(evolve(config, norm_topk_prob=normalize)).requires_grad_(False)
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(5, 16)
    expected = block(x)
    routed, mixed = counting(route_experts), counting(experts)
    assert torch.equal(block(x), expected)
    assert (routed, mixed) == ([1], [1])
    weights, _ = block.gate(x)
    assert torch.allclose(weights.sum(-1), torch.ones(5)) == normalize
