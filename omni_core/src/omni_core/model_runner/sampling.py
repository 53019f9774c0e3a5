"""Choosing tokens: penalties, filters and the draw, in the order and with the meaning of transformers' processors.

Each request's choice depends on its own logits, parameters and random numbers only, never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import torch
from attrs import fields

from omni_core.errors import InvalidRequestError
from omni_core.model_runner.types import ARRequest, SamplingParams


def sample(logits: torch.Tensor, requests: Sequence[ARRequest]) -> list[int]:
    """The next token id of each request.

    Args:
        logits: ``[m, vocab]``, one row per request. Not changed.
        requests: the requests, whose ``output_ids`` count as history.
    """
    logits = logits.float()
    rows = [penalized(row, request) for row, request in zip(logits, requests, strict=True)]
    greedy = [index for index, request in enumerate(requests) if request.sampling.temperature == 0]
    chosen = [0] * len(rows)
    if greedy:
        best = torch.stack([rows[index] for index in greedy]).argmax(-1).tolist()
        for index, token in zip(greedy, best, strict=True):
            chosen[index] = token
    for index, request in enumerate(requests):
        if request.sampling.temperature > 0:
            chosen[index] = draw(rows[index], request.sampling, request.random.uniform(len(request.output_ids)))
    return chosen


def penalized(row: torch.Tensor, request: ARRequest) -> torch.Tensor:
    """``row`` (``[vocab]``) after the repetition penalty and with suppressed ids at minus infinity."""
    params = request.sampling
    history = request.output_ids
    if params.penalize_prompt:
        history = [*request.prompt_ids, *history]
    if params.repetition_penalty != 1.0 and history:
        seen = torch.tensor(sorted(set(history)), device=row.device)
        scores = row[seen]
        row = row.clone()
        row[seen] = torch.where(scores < 0, scores * params.repetition_penalty, scores / params.repetition_penalty)
    if params.suppressed_ids:
        row = row.index_fill(0, _as_index(params.suppressed_ids, row.device), float("-inf"))
    return row


_indices: dict[frozenset[int], torch.Tensor] = {}


def _as_index(ids: frozenset[int], device: torch.device) -> torch.Tensor:
    """An index tensor for a set of ids; the few sets that a process uses are kept."""
    if ids not in _indices:
        if len(_indices) >= 64:
            _indices.clear()
        _indices[ids] = torch.tensor(sorted(ids))
    return _indices[ids].to(device)


def candidates(row: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids that may be drawn, best first, and their probabilities: temperature, then top-k, top-p, min-p."""
    scaled = row / params.temperature
    if 0 < params.top_k < len(scaled):
        scaled, ids = scaled.topk(params.top_k)
    elif params.top_p < 1.0:
        scaled, ids = scaled.sort(descending=True)
    else:
        ids = torch.arange(len(scaled), device=row.device)
    probabilities = scaled.softmax(-1)
    if params.top_p < 1.0:
        # An id stays while the mass of the ids before it is below top_p, so at least one stays.
        kept = probabilities.cumsum(-1) - probabilities < params.top_p
        ids, probabilities = ids[kept], probabilities[kept]
    if params.min_p > 0.0:
        kept = probabilities >= params.min_p * probabilities.max()
        ids, probabilities = ids[kept], probabilities[kept]
    return ids, probabilities / probabilities.sum()


def draw(row: torch.Tensor, params: SamplingParams, uniform: float) -> int:
    """One id by inverting the cumulative distribution at ``uniform`` in [0, 1)."""
    ids, probabilities = candidates(row, params)
    # By id, not by probability: two that are nearly equal would change places with the last bit of the logits.
    ids, order = ids.sort()
    probabilities = probabilities[order]
    cumulative = probabilities.double().cumsum(-1)
    index = int(torch.searchsorted(cumulative, uniform * float(cumulative[-1]), right=True))
    return int(ids[min(index, len(ids) - 1)])


_CHECKS: dict[str, tuple[Any, float, float, str]] = {
    "temperature": ((int, float), 0.0, 100.0, "0 (greedy) or more"),
    "top_k": (int, 0, 2**31, "0 (off) or more"),
    "top_p": ((int, float), 1e-6, 1.0, "in (0, 1]"),
    "min_p": ((int, float), 0.0, 1.0, "in [0, 1]"),
    "repetition_penalty": ((int, float), 1e-3, 100.0, "greater than 0"),
    "max_new_tokens": (int, 1, 2**31, "1 or more"),
}


def sampling_from(given: dict[str, Any], where: str, **fixed: Any) -> SamplingParams:
    """Sampling parameters from a request's own, checked; ``fixed`` are the stage's (stop ids and the like).

    Raises:
        InvalidRequestError: an unknown name or a value out of range; ``where`` is the path in the message.
    """
    names = [*_CHECKS, "seed", "stop_ids", "suppressed_ids"]
    for name, value in given.items():
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
            raise InvalidRequestError(f"{where}.{name}: no such sampling parameter; {hint}")
        if name in _CHECKS:
            kind, low, high, meaning = _CHECKS[name]
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
                raise InvalidRequestError(f"{where}.{name}: must be {meaning}, is {value!r}")
    seed = given.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise InvalidRequestError(f"{where}.seed: must be an integer, is {seed!r}")
    values = {**given, **fixed}
    for name in ("stop_ids", "suppressed_ids"):
        values[name] = frozenset(given.get(name, ())) | frozenset(fixed.get(name, ()))
    known = {attribute.name for attribute in fields(SamplingParams)}
    return SamplingParams(**{name: value for name, value in values.items() if name in known})
