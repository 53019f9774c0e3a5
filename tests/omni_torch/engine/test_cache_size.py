"""The KV cache of a stage that does not say how large it is: as planned, from the weights that were really loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from omni_core.errors import ConfigError
from omni_core.model_runner.types import KVLayout
from omni_torch.engine.cache_size import budget_blocks, default_blocks
from omni_torch.placement.budgets import CacheShape

MIB = 2**20
SHAPE = CacheShape(layers=2, kv_heads=2, head_dim=16, hidden_size=64, vocab_size=500, max_context=4096)
BLOCK = 16


class Decoder(nn.Module):
    hidden_size, vocab_size = SHAPE.hidden_size, SHAPE.vocab_size
    kv_layout = KVLayout(2, 2, 16, torch.bfloat16, 4)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1000, 1000, bias=False, dtype=torch.bfloat16)
        self.tied = self.layer  # counted once


def runner(device: str = "cpu") -> Any:
    return SimpleNamespace(model=Decoder(), device=torch.device(device))


def test_a_budget_leaves_what_was_planned() -> None:
    weights, step, position = 2_000_000, SHAPE.step_bytes(2, 128, 4), SHAPE.position_bytes(2)
    block_bytes = 2 * 2 * 2 * 16 * 2 * BLOCK
    planned = 1000 * BLOCK * position
    assert budget_blocks(runner(), block_bytes, BLOCK, 128, 4, weights + step + planned) == 1000


def test_a_budget_without_room_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"gpu_memory: 0\.1 GiB leave no room for a KV cache: weights take 0\.0 GiB"):
        budget_blocks(runner(), 1000, BLOCK, 128, 4, 100 * MIB)


def test_on_a_cpu_the_free_memory_bounds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_torch.engine.cache_size.available_memory", lambda: 64 * 2**30)
    assert default_blocks(runner(), MIB, BLOCK, 100, 128, 4, None) == 512
    assert default_blocks(runner(), MIB, BLOCK, 3000, 128, 4, None) == 3000
    monkeypatch.setattr("omni_torch.engine.cache_size.available_memory", lambda: 4 * 2**30)
    assert default_blocks(runner(), MIB, BLOCK, 3000, 128, 4, None) == 1024


def test_on_a_gpu_without_a_budget_it_is_small() -> None:
    assert default_blocks(runner("cuda"), MIB, BLOCK, 3000, 128, 4, None) == 512
