"""The thinker on two tensor parallel ranks gives the same ids, codes and sound as on one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from qwen25_stages import Stages

from omni_core import open_async
from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest
from omni_qwen25.config import read_config
from omni_qwen25.networks import Thinker, load_thinker
from omni_qwen25.pipeline import qwen25_omni
from omni_torch.processes.tensor_parallel import TensorParallel


def request(text: str, *parts: dict[str, Any], **sampling: Any) -> OmniRequest:
    params = {
        "thinker": {"max_new_tokens": 10, **sampling},
        "talker": {"temperature": 0.0, "max_new_tokens": 12},
        "token2wav": {"seed": 1, "num_steps": 3},
        "return_codes": True,
    }
    return OmniRequest({"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]}, params)


async def test_two_ranks_equal_one(tiny: dict[str, Path]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)
    requests = [
        request("Hello."),
        request("What is in the picture?", {"type": "image", "image": image}),
        request("Tell me a story.", temperature=1.0, seed=5),
    ]
    alone = Stages(tiny["a"]).run(*requests)
    config = qwen25_omni(str(tiny["a"]), processes="one", gpu="none")
    ranks = {"process": "thinker", "tp_size": 2}
    stages = [evolve(each, **ranks) if each.name == "thinker" else each for each in config.stages]
    async with open_async(evolve(config, stages=stages)) as pipe:
        assert {"thinker_tp0", "thinker_tp1"} <= set(pipe.process_ids)
        both = await asyncio.gather(*(pipe.submit(each) for each in requests))
        drawn = await pipe.submit(request("Hello.", temperature=5.0))  # without a seed, which the ranks must agree on
        assert len(drawn["decode"].token_ids) > 0
    for one, two in zip(alone, both, strict=True):
        assert list(two["decode"].token_ids) == one.ids
        assert np.asarray(two["mel2wav"].codes).tolist() == one.codes
        np.testing.assert_allclose(two["mel2wav"].samples, one.samples, atol=1e-4)


@pytest.mark.parametrize("shape", ["a", "b"])  # two key/value heads, one for each rank; one, which both ranks hold
def test_each_rank_has_its_heads_with_their_biases(tiny: dict[str, Path], shape: str) -> None:
    path, config = str(tiny[shape]), read_config(tiny[shape])
    decoder = config.thinker
    heads, kv_heads, wide = decoder.heads, decoder.kv_heads, decoder.head_dim
    whole = load_thinker(path, config).model.layers[0].self_attn
    for rank in range(2):
        mine = load_thinker(path, config, parallel=TensorParallel(rank, 2)).model.layers[0].self_attn
        own = heads // 2
        queries = list(range(rank * own, (rank + 1) * own))
        keys = [rank] if kv_heads == 2 else [0]
        held = [*queries, *(heads + each for each in keys), *(heads + kv_heads + each for each in keys)]
        # A layer's bias, and its weights by columns, in whatever layout they are.
        probe = torch.cat([torch.zeros(1, decoder.hidden_size), torch.eye(decoder.hidden_size)])
        every, part = (each.qkv_proj(probe).view(len(probe), -1, wide) for each in (whole, mine))
        assert torch.allclose(part, every[:, held], atol=1e-5)


def test_ranks_that_cannot_share_the_model_are_refused(tiny: dict[str, Path]) -> None:
    config = read_config(tiny["a"])
    with (
        torch.device("meta"),
        pytest.raises(ConfigError, match="tp_size: 3 does not divide the model's 4 attention heads"),
    ):
        Thinker(config.thinker, TensorParallel(0, 3))
