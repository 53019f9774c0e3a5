"""Sizes the KV cache of a stage that does not say how large it is: from its budget on a GPU, from the free memory on a CPU.

The engines call this when the weights are loaded; :mod:`omni_torch.placement.devices` plans with the same arithmetic before.
"""

from __future__ import annotations

import torch
from torch import nn

from omni_core.api import ConfigError, ModelRunner
from omni_torch.placement.budgets import CPU_CACHE, cpu_cache_bytes, left_for_cache, request_values, step_bytes
from omni_torch.placement.processor import available_memory


def default_blocks(
    runner: ModelRunner,
    block_bytes: int,
    block_size: int,
    longest: int,
    tokens: int,
    running: int,
    gpu_memory: int | float | None,
) -> int:
    """Return the number of cache blocks of a stage that does not say how many.

    Args:
        longest: blocks of the longest request.
        tokens, running: positions and requests of one step.
        gpu_memory: the stage's budget: bytes, or a share of its GPU; ``None`` without one, and on a CPU.

    Raises:
        ConfigError: the budget cannot hold the weights and one block.
    """
    if runner.device.type != "cuda":
        return max(1, cpu_cache_bytes(longest * block_bytes, available_memory()) // block_bytes)
    if gpu_memory is None:
        return max(1, CPU_CACHE // block_bytes)
    budget = gpu_memory
    if isinstance(budget, float):
        budget = int(budget * torch.cuda.get_device_properties(runner.device).total_memory)
    return budget_blocks(runner, block_bytes, block_size, tokens, running, budget)


def budget_blocks(
    runner: ModelRunner, block_bytes: int, block_size: int, tokens: int, running: int, budget: int
) -> int:
    """Return the number of blocks that weights, one step and the requests' own rows leave of a budget. Raises as :func:`default_blocks`."""
    model = runner.model
    item = model.kv_layout.dtype.itemsize
    weights = _weight_bytes(model)
    step = step_bytes(model.hidden_size, model.vocab_size, item, tokens, running)
    rows = request_values(model.hidden_size) * item * block_size
    blocks = left_for_cache(budget, weights, step) // (block_bytes + rows)
    if blocks < 1:
        raise ConfigError(
            f"gpu_memory: {budget / 2**30:.1f} GiB leave no room for a KV cache: weights take {weights / 2**30:.1f} GiB, "
            f"a step {step / 2**30:.1f} GiB; raise it, or give kv_cache_mb"
        )
    return blocks


def _weight_bytes(model: object) -> int:
    """Return the size of a network's parameters and buffers, shared ones once."""
    if not isinstance(model, nn.Module):
        return 0
    found = {each.data_ptr(): each.nbytes for each in (*model.parameters(), *model.buffers())}
    return sum(found.values())
