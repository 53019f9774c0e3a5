"""Builds a batch from requests: the ids and positions of a run of each request, packed one request after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np
import torch

from omni_core.api import ARRequest, ForwardBatch, PagedAttention
from omni_torch.runners.transfers import all_to_device


def packed_batch(
    requests: list[ARRequest],
    starts: list[int],
    lengths: list[int],
    attention: PagedAttention,
    device: torch.device,
    keep: Callable[[torch.Tensor], None] | None = None,
) -> ForwardBatch:
    """One step's work: the positions ``start..start + length`` of each request. Requests whose newest position is among
    them are sampled.
    """
    tokens: list[int] = []
    sample_rows, sampled = [], []
    for index, (request, start, length) in enumerate(zip(requests, starts, lengths, strict=True)):
        tokens.extend(ids(request, start, length))
        if start + length == request.length:
            sampled.append(index)
            sample_rows.append(len(tokens) - 1)
    on_host = indices(tokens), packed_rotary(requests, starts, lengths), indices(sample_rows)
    input_ids, positions, rows = all_to_device(on_host, device)
    return ForwardBatch(
        requests=requests,
        starts=starts,
        lengths=lengths,
        input_ids=input_ids,
        input_embeds=None,
        positions=positions,
        attention=attention,
        sample_rows=rows,
        sampled=sampled,
        keep=keep,
    )


def sampled_rows(batch: ForwardBatch) -> list[int]:
    """Return ``batch.sample_rows`` as the host knows them, which need not wait for a GPU."""
    ends = list(accumulate(batch.lengths))
    return [ends[index] - 1 for index in batch.sampled]


def prompt_runs(batch: ForwardBatch) -> Iterator[tuple[ARRequest, int, int, int]]:
    """Yield ``(request, start, end, first row)`` of every run of prompt positions in a batch."""
    row = 0
    for request, start, length in zip(batch.requests, batch.starts, batch.lengths, strict=True):
        end = min(start + length, len(request.prompt_ids))
        if start < end:
            yield request, start, end, row
        row += length


def indices(values: Sequence[int] | Sequence[Sequence[int]], dtype: type = np.int64) -> torch.Tensor:
    """Return a tensor of whole numbers on the CPU. A step makes several, for which ``torch.tensor`` takes longer."""
    return torch.from_numpy(np.array(values, dtype=dtype))


def ids(request: ARRequest, start: int, count: int) -> list[int]:
    """Return the token ids of a run: the prompt's, then the generated ones."""
    prompt = len(request.prompt_ids)
    if start >= prompt:
        return request.output_ids[start - prompt : start - prompt + count]
    return (request.prompt_ids[start : start + count] + request.output_ids)[:count]


def rotary(request: ARRequest, start: int, count: int) -> torch.Tensor:
    """Return the rotary positions of a run: the prompt's own, then index plus delta. ``[count]`` or ``[3, count]``."""
    prompt, given, delta = len(request.prompt_ids), request.prompt_positions, request.position_delta
    tail = torch.arange(max(start, prompt), max(start + count, prompt)) + delta
    if start < prompt:
        end = min(start + count, prompt)
        head = torch.arange(start, end) if given is None else given[..., start:end]
        tail = torch.cat([head, tail.expand(*head.shape[:-1], -1)], dim=-1) if start + count > prompt else head
    elif given is not None:
        tail = tail.expand(*given.shape[:-1], -1)
    return tail


def packed_rotary(requests: list[ARRequest], starts: list[int], lengths: list[int]) -> torch.Tensor:
    """Return :func:`rotary` of several runs, concatenated: ``[n]``, or ``[3, n]`` if any request has three axes."""
    axes = any(r.prompt_positions is not None and r.prompt_positions.dim() == 2 for r in requests)
    if all(start >= len(r.prompt_ids) for r, start in zip(requests, starts, strict=True)) and max(lengths) == 1:
        # A fast path for a step of decodes, because it runs for every token.
        positions = [start + r.position_delta for r, start in zip(requests, starts, strict=True)]
        whole = [position for position in positions if isinstance(position, int)]
        packed = indices(whole) if len(whole) == len(positions) else torch.tensor(positions)
        return packed.expand(3, -1) if axes else packed
    runs = [rotary(*run) for run in zip(requests, starts, lengths, strict=True)]
    if axes:
        runs = [run if run.dim() == 2 else run.expand(3, -1) for run in runs]
    return torch.cat(runs, dim=-1)
