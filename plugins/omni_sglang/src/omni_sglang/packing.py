"""What stands at a run of a request's positions: its ids and its rotary positions."""

from __future__ import annotations

import torch

from omni_core.model_runner.types import ARRequest


def input_ids(request: ARRequest, start: int, count: int) -> list[int]:
    """The ids of positions ``start..start + count``, of the prompt and of what was generated."""
    prompt = len(request.prompt_ids)
    if start >= prompt:
        return request.output_ids[start - prompt : start - prompt + count]
    return (request.prompt_ids[start : start + count] + request.output_ids)[:count]


def rotary_positions(request: ARRequest, start: int, count: int) -> torch.Tensor:
    """Rotary positions of a run: the prompt's own, then index plus delta. ``[count]`` or ``[3, count]``."""
    prompt, given, delta = len(request.prompt_ids), request.prompt_positions, request.position_delta
    tail = torch.arange(max(start, prompt) + delta, max(start + count, prompt) + delta)
    if start < prompt:
        end = min(start + count, prompt)
        head = torch.arange(start, end) if given is None else given[..., start:end]
        tail = torch.cat([head, tail.expand(*head.shape[:-1], -1)], dim=-1) if start + count > prompt else head
    elif given is not None:
        tail = tail.expand(*given.shape[:-1], -1)
    return tail
