"""Ids and rotary positions of packed runs, against the whole sequence written out."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiers import few

from omni_core.model_runner import ARRequest, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_torch.loop.packing import packed_batch, sampled_rows


def nowhere(*arguments: Any, **options: Any) -> torch.Tensor:
    """The attention of a batch that is not computed."""
    raise NotImplementedError


def made(chance: random.Random, *, axes: bool) -> tuple[ARRequest, list[int], torch.Tensor]:
    """A request, its ids, and the rotary positions of its sequence, ``[3, length]`` or ``[length]``."""
    prompt, generated = chance.randint(1, 12), chance.randint(1, 6)
    request = ARRequest("r", OmniRequest(), [chance.randrange(90) for _ in range(prompt)], SamplingParams())
    request.output_ids = [chance.randrange(90) for _ in range(generated)]
    request.position_delta = chance.choice([0, 0, -3, 5])
    shape = (3, prompt) if axes else (prompt,)
    if axes or chance.random() < 0.5:
        request.prompt_positions = torch.randint(0, 50, shape)
        head = request.prompt_positions
    else:
        head = torch.arange(prompt)
    tail = torch.arange(prompt, prompt + generated) + request.position_delta
    return request, request.prompt_ids + request.output_ids, torch.cat([head, tail.expand(*shape[:-1], -1)], dim=-1)


@pytest.mark.parametrize("seed", few(range(20), 4))
@pytest.mark.parametrize("decode", [True, False])
def test_runs_are_parts_of_the_sequence(seed: int, decode: bool) -> None:
    chance = random.Random(seed)
    requests, starts, lengths, expected, packed = [], [], [], [], []
    for _ in range(chance.randint(1, 4)):
        request, tokens, places = made(chance, axes=chance.random() < 0.5)
        start = request.length - 1 if decode else chance.randrange(request.length)
        length = 1 if decode else chance.randint(1, request.length - start)
        packed += tokens[start : start + length]
        requests.append(request)
        starts.append(start)
        lengths.append(length)
        expected.append(places[..., start : start + length])
    if any(each.dim() == 2 for each in expected):
        expected = [each if each.dim() == 2 else each.expand(3, -1) for each in expected]
    batch = packed_batch(requests, starts, lengths, nowhere, torch.device("cpu"))
    assert batch.input_ids.tolist() == packed
    assert torch.equal(batch.positions, torch.cat(expected, dim=-1))
    ends = torch.tensor(lengths).cumsum(0).tolist()
    newest = [i for i, each in enumerate(requests) if starts[i] + lengths[i] == each.length]
    assert sampled_rows(batch) == batch.sample_rows.tolist()
    assert (batch.sampled, batch.sample_rows.tolist()) == (newest, [ends[index] - 1 for index in newest])
