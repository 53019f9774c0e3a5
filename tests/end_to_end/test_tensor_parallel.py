"""The thinker on two ranks (gloo) gives the same results as on one: ids, codes and sound, batched, streamed, sampled."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from harness import mixed, pipeline, request_of
from tiers import few

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError, RequestAbortedError
from omni_qwen3.config import read_config
from omni_qwen3.sharding import part_of
from omni_qwen3.thinker_network import Thinker, load_thinker
from omni_torch.processes.tensor_parallel import TensorParallel


def sharded(model_path: Path, size: int, **arguments: Any) -> PipelineConfig:
    config = pipeline(model_path)
    stages = [
        evolve(stage, tp_size=size, factory_args={**stage.factory_args, **arguments})
        if stage.name == "thinker"
        else evolve(stage, process="others")
        for stage in config.stages
    ]
    return evolve(config, stages=stages)


async def steps_of_both(client: AsyncPipe) -> int:
    """Return the steps of both ranks, once they are equal: after the first answers, the second may still be at the end
    of that step.
    """
    async with asyncio.timeout(60):
        while True:
            counters = await client.statistics()
            first, second = (counters[f"thinker_tp{rank}"]["thinker"]["steps"] for rank in range(2))
            if first == second:
                return int(first)


@pytest.mark.parametrize("expert_parallel", few([False, True], 1), ids=["slices of experts", "whole experts"])
@pytest.mark.parametrize(
    "shape", few(["a", "b"], 1)
)  # two key/value heads, one for each rank; one, which both ranks hold
async def test_two_ranks_equal_one(
    checkpoints: dict[str, Path], cases: dict[str, Any], shape: str, expert_parallel: bool
) -> None:
    requests = mixed(cases)
    async with open_async(pipeline(checkpoints[shape], processes="one")) as client:
        alone = await asyncio.gather(*(client.submit(request) for request in requests))
    async with open_async(sharded(checkpoints[shape], 2, expert_parallel=expert_parallel)) as client:
        assert {"thinker_tp0", "thinker_tp1"} <= set(client.process_ids)
        both = await asyncio.gather(*(client.submit(request) for request in requests))
        single = await client.submit(requests[-1])
        assert list(single["decode"].token_ids) == list(alone[-1]["decode"].token_ids), "without other requests"
        for index, (one, two) in enumerate(zip(alone, both, strict=True)):
            assert one.keys() == two.keys()
            if "decode" in one:  # a given text is spoken, and not written
                assert list(two["decode"].token_ids) == list(one["decode"].token_ids), index
            assert np.array_equal(np.asarray(two["code2wav"].codes), np.asarray(one["code2wav"].codes)), index
            np.testing.assert_allclose(two["code2wav"].samples, one["code2wav"].samples, atol=1e-4)
        assert await steps_of_both(client) > 0


@pytest.mark.full
async def test_ranks_stay_together_without_a_seed_through_aborts_and_deaths(
    checkpoints: dict[str, Path], cases: dict[str, Any]
) -> None:
    def sampled() -> Any:
        request = request_of(cases["text"])
        request.params["thinker"] |= {"temperature": 1.3, "max_new_tokens": 200}
        return request

    async with open_async(sharded(checkpoints["a"], 2)) as client:
        greedy = request_of(cases["image"])
        before = await client.submit(greedy)
        running = [asyncio.create_task(client.submit(sampled(), f"r{n}")) for n in range(6)]
        await asyncio.sleep(0.3)
        for n in (0, 2, 4):
            await client.abort(f"r{n}")
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        for n, outcome in enumerate(outcomes):
            if n % 2 or isinstance(outcome, dict):  # an abort may come too late
                assert isinstance(outcome, dict), outcome
            else:
                assert isinstance(outcome, RequestAbortedError)
        assert list((await client.submit(greedy))["decode"].token_ids) == list(before["decode"].token_ids)

        os.kill(client.process_ids["thinker_tp1"], signal.SIGKILL)
        while client.health()["thinker"]["state"] == "ready":
            await asyncio.sleep(0.01)
        after = await asyncio.wait_for(client.submit(greedy), 120)
        assert list(after["decode"].token_ids) == list(before["decode"].token_ids)
        assert await steps_of_both(client) > 0


@pytest.mark.parametrize("expert_parallel", [False, True], ids=["slices of experts", "whole experts"])
@pytest.mark.parametrize(("shape", "size"), [("a", 2), ("a", 4), ("b", 2), ("c", 2), ("c", 4)])
def test_every_weight_is_read_once_in_full_or_in_parts(
    checkpoints: dict[str, Path], shape: str, size: int, expert_parallel: bool
) -> None:
    """A layer's partial results over all ranks sum to the whole layer's."""
    config, folder = read_config(checkpoints[shape]), str(checkpoints[shape])
    whole = load_thinker(folder, config)
    ranks = [
        load_thinker(folder, config, parallel=_Recorded(rank, size), expert_parallel=expert_parallel)
        for rank in range(size)
    ]
    x = torch.randn(7, config.thinker.hidden_size, generator=torch.Generator().manual_seed(1))
    for full, *parts in zip(whole.model.layers, *(rank.model.layers for rank in ranks), strict=True):
        summed = sum(part.mlp(x) for part in parts)
        torch.testing.assert_close(summed, full.mlp(x), atol=1e-5, rtol=1e-4)
        heads = torch.cat([part.self_attn.qkv_proj(x)[:, : _queries(part)] for part in parts], 1)
        torch.testing.assert_close(heads, full.self_attn.qkv_proj(x)[:, : _queries(full)])
        query = torch.randn(7, _queries(full), generator=torch.Generator().manual_seed(2))
        projected = sum(p.self_attn.o_proj(q) for p, q in zip(parts, query.chunk(size, 1), strict=True))
        torch.testing.assert_close(projected, full.self_attn.o_proj(query), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ranks[-1].lm_head.weight, whole.lm_head.weight)


def _queries(layer: Any) -> int:
    return int(layer.self_attn.heads * layer.self_attn.head_dim)


class _Recorded(TensorParallel):
    """A rank without a process group: only shapes and loading are tested."""

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing is summed here")


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ("a", 3, "tp_size: 3 does not divide the model's 4 attention heads"),
        ("b", 3, "tp_size: 3 does not divide the model's 64 feed-forward units"),
        ("b", 4, "tp_size: 4 does not divide the model's 6 attention heads"),
    ],
)
def test_sizes_that_cannot_be_split_are_errors(
    checkpoints: dict[str, Path], shape: str, size: int, expected: str
) -> None:
    config = read_config(checkpoints[shape]).thinker
    with pytest.raises(ConfigError, match=expected), torch.device("meta"):
        Thinker(config, TensorParallel(0, size))


def test_key_value_heads_are_repeated_where_there_are_fewer_than_ranks(checkpoints: dict[str, Path]) -> None:
    config = read_config(checkpoints["a"]).thinker
    assert config.kv_heads == 2
    parts = [part_of(config, TensorParallel(rank, 4))("layers.0.self_attn.k_proj.weight") for rank in range(4)]
    assert [(part.index, part.count) for part in parts if part is not None] == [(0, 2), (0, 2), (1, 2), (1, 2)]
