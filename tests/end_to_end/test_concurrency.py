"""Batching does not change results: eight different concurrent requests equal the same requests alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from harness import mixed, pipeline, request_of

from omni_core.client import open_async
from omni_core.protocol.messages import OmniRequest


async def test_eight_concurrent_requests_equal_each_alone(checkpoints: dict[str, Path], cases: dict[str, Any]) -> None:
    requests = mixed(cases)
    assert len(requests) == 8
    async with open_async(pipeline(checkpoints["a"])) as client:
        alone = [await client.submit(request) for request in requests]
        together = await asyncio.gather(*(client.submit(request) for request in requests))
        again = await asyncio.gather(*(client.submit(request) for request in reversed(requests)))
    for index, (one, both, third) in enumerate(zip(alone, together, reversed(again), strict=True)):
        for other in (both, third):
            assert list(other["decode"].token_ids) == list(one["decode"].token_ids), index
            assert np.array_equal(np.asarray(other["code2wav"].codes), np.asarray(one["code2wav"].codes)), index
            np.testing.assert_allclose(other["code2wav"].samples, one["code2wav"].samples, atol=1e-4)
    assert len({tuple(one["decode"].token_ids) for one in alone}) > 5, "the requests are too alike to show anything"


async def test_a_seed_decides_a_sampled_reply(checkpoints: dict[str, Path], cases: dict[str, Any]) -> None:
    def sampled(seed: int) -> OmniRequest:
        request = request_of(cases["text"])
        request.params["thinker"] |= {"temperature": 1.5}
        request.params["talker"] |= {"temperature": 1.0}
        request.params["seed"] = seed
        return request

    async with open_async(pipeline(checkpoints["a"], processes="one")) as client:
        first, same, other = [await client.submit(sampled(seed)) for seed in (1, 1, 2)]
    assert list(first["decode"].token_ids) == list(same["decode"].token_ids)
    np.testing.assert_array_equal(np.asarray(first["code2wav"].codes), np.asarray(same["code2wav"].codes))
    assert list(first["decode"].token_ids) != list(other["decode"].token_ids)
