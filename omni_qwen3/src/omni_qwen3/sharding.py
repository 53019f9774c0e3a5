"""Splits a Qwen3 decoder over tensor parallel ranks: its heads, and a slice of every feed-forward (Megatron-LM's split).

Column-parallel: queries, keys, values, gates and ups, by output rows. Row-parallel: the output projection and the downs, by input
columns; their partial results are summed. With fewer key/value heads than ranks, several ranks hold the same one.

With expert parallelism, each rank holds some of the experts whole in place of a slice of every one. The rest is split in the same way, and
every rank routes all rows, so that the sums over the ranks are the same.
"""

from __future__ import annotations

from attrs import evolve

from omni_core.api import ConfigError
from omni_qwen3.checkpoint import PartOf
from omni_qwen3.config import BY_COLUMNS, BY_ROWS, EXPERTS, KEYS_AND_VALUES, DecoderConfig
from omni_torch.api import Part, TensorParallel


def local_config(config: DecoderConfig, parallel: TensorParallel, expert_parallel: bool = False) -> DecoderConfig:
    """Return the config of the decoder that one rank computes.

    Args:
        expert_parallel: each rank holds experts whole. With one rank it holds all of them, as without.

    Raises:
        ConfigError: ``tp_size`` does not divide the heads, a feed-forward size or the number of experts, or the output projection has a
            bias (each rank would add its own); or ``expert_parallel`` without a mixture of experts.
    """
    if expert_parallel and not any(map(config.is_sparse, range(config.layers))):
        raise ConfigError(
            "expert_parallel: the checkpoint has no mixture of experts; remove it, tp_size alone splits dense layers"
        )
    if parallel.size > 1 and config.attention_bias:
        raise ConfigError("tp_size: a checkpoint with attention_bias cannot be split over ranks; use tp_size 1")
    local = evolve(
        config,
        heads=parallel.share(config.heads, "attention heads"),
        kv_heads=config.kv_heads // _key_value_parts(config, parallel),
        intermediate_size=parallel.share(config.intermediate_size, "feed-forward units (intermediate_size)"),
        shared_expert_size=parallel.share(config.shared_expert_size, "units of the shared expert"),
    )
    if expert_parallel and parallel.size > 1:
        count = parallel.share(config.experts, "experts, which expert_parallel leaves whole")
        return evolve(local, local_experts=range(parallel.rank * count, (parallel.rank + 1) * count))
    units = parallel.share(config.moe_intermediate_size, "units of an expert (moe_intermediate_size)")
    return evolve(local, moe_intermediate_size=units)


def part_of(config: DecoderConfig, parallel: TensorParallel, expert_parallel: bool = False) -> PartOf:
    """Return the function that selects a rank's part of each on-disk tensor. With ``expert_parallel`` those of experts are whole: a rank
    reads the tensors of its own experts only, see :func:`omni_qwen3.checkpoint.sources`.
    """
    parts = _key_value_parts(config, parallel)

    def part(name: str) -> Part | None:
        if parallel.size == 1 or (expert_parallel and EXPERTS in name):
            return None
        if name.endswith(BY_ROWS):
            return parallel.part(0)
        if name.endswith(BY_COLUMNS):
            return parallel.part(1)
        if name.endswith(KEYS_AND_VALUES):
            return Part(0, parallel.rank * parts // parallel.size, parts)
        return None

    return part


def _key_value_parts(config: DecoderConfig, parallel: TensorParallel) -> int:
    """Return the number of parts of the key/value heads: one per rank, or one per head if there are fewer heads than ranks."""
    parts = min(parallel.size, config.kv_heads)
    if config.kv_heads % parts or parallel.size % parts:
        raise ConfigError(
            f"tp_size: {parallel.size} ranks cannot share the model's {config.kv_heads} key/value heads evenly"
        )
    return parts
