"""Splits a Qwen3 decoder over tensor parallel ranks: its heads, and a slice of every feed-forward (Megatron-LM's split).

Column-parallel: queries, keys, values, gates and ups, by output rows. Row-parallel: the output projection and the downs, by input
columns; their partial results are summed. With fewer key/value heads than ranks, several ranks hold the same one.
"""

from __future__ import annotations

from attrs import evolve

from omni_core.errors import ConfigError
from omni_qwen3.checkpoint import PartOf
from omni_qwen3.config import BY_COLUMNS, BY_ROWS, KEYS_AND_VALUES, DecoderConfig
from omni_torch.tensor_parallel import Part, TensorParallel


def local_config(config: DecoderConfig, parallel: TensorParallel) -> DecoderConfig:
    """Return the config of the decoder that one rank computes.

    Raises:
        ConfigError: ``tp_size`` does not divide the heads or a feed-forward size, or the output projection has a bias (each rank would
            add its own).
    """
    if parallel.size > 1 and config.attention_bias:
        raise ConfigError("tp_size: a checkpoint with attention_bias cannot be split over ranks; use tp_size 1")
    return evolve(
        config,
        heads=parallel.share(config.heads, "attention heads"),
        kv_heads=config.kv_heads // _key_value_parts(config, parallel),
        intermediate_size=parallel.share(config.intermediate_size, "feed-forward units (intermediate_size)"),
        moe_intermediate_size=parallel.share(
            config.moe_intermediate_size, "units of an expert (moe_intermediate_size)"
        ),
        shared_expert_size=parallel.share(config.shared_expert_size, "units of the shared expert"),
    )


def part_of(config: DecoderConfig, parallel: TensorParallel) -> PartOf:
    """Return the function that selects a rank's part of each on-disk tensor."""
    parts = _key_value_parts(config, parallel)

    def part(name: str) -> Part | None:
        if parallel.size == 1:
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
