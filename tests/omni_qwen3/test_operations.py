"""The model's norms and activations are operations: an installed kernel runs in their place, and without one nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeSnakeBeta

from omni_core.model_runner import kernels
from omni_core.model_runner.kernels import Operation
from omni_core.model_runner.operations import add_rms_norm, rms_norm, snake_beta
from omni_qwen3.code2wav import _replace_activations
from omni_qwen3.layers import RMSNorm


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a counter in the place of an operation's kernel."""
    changed = []

    def count(operation: Operation[..., Any]) -> list[int]:
        calls = [0]

        def kernel(*args: Any) -> Any:
            calls[0] += 1
            return operation.reference(*args)

        def choose(device: str, dtype: torch.dtype) -> Callable[..., Any]:
            return kernel

        monkeypatch.setattr(operation, "choose", choose)
        monkeypatch.setitem(kernels._installed, operation.name, [])
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


def test_the_vocoder_s_activations_run_the_chosen_kernel_with_the_checkpoint_s_parameters(counting: Any) -> None:
    network = nn.Sequential(nn.Sequential(Qwen3OmniMoeSnakeBeta(4)), Qwen3OmniMoeSnakeBeta(4))
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 4, 50)
    names, expected = list(network.state_dict()), network(x)
    _replace_activations(network)
    calls = counting(snake_beta)
    assert torch.equal(network(x), expected)
    assert calls == [2]
    assert list(network.state_dict()) == names
