"""A seed decides a sampled reply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from harness import pipeline, request_of

from omni_core.client import open_async
from omni_core.protocol.messages import OmniRequest


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
