"""Choosing tokens: penalties, filters and the draw, in the order and with the meaning of transformers' processors.

Each request's choice depends on its own logits, parameters and random numbers only, never on its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import torch
from attrs import fields

from omni_core.errors import InvalidRequestError
from omni_core.model_runner.types import ARRequest, SamplingParams, SeenIds


def sample(logits: torch.Tensor, requests: Sequence[ARRequest]) -> list[int]:
    """The next token id of each request.

    Args:
        logits: ``[m, vocab]``, one row per request. Not changed.
        requests: the requests, whose ``output_ids`` count as history.

    Raises:
        FloatingPointError: a row has no finite largest value: NaN in the model, or every id suppressed.
    """
    logits = penalized(logits.float(), requests)
    best = logits.max(dim=-1)
    for request, value in zip(requests, best.values.tolist(), strict=True):
        if not math.isfinite(value):
            raise FloatingPointError(
                f"request {request.request_id}: no token can be chosen at position {request.length}, the largest logit is "
                f"{value}; look for NaN in its inputs or in the weights, or for suppressed_ids that cover the vocabulary"
            )
    chosen: list[int] = best.indices.tolist()
    drawing = [index for index, request in enumerate(requests) if request.sampling.temperature > 0]
    if drawing:
        params = [requests[index].sampling for index in drawing]
        uniforms = [requests[index].random.uniform(len(requests[index].output_ids)) for index in drawing]
        for index, token in zip(drawing, draw(logits[drawing], params, uniforms), strict=True):
            chosen[index] = token
    return chosen


def penalized(logits: torch.Tensor, requests: Sequence[ARRequest]) -> torch.Tensor:
    """``logits`` (``[m, vocab]``) after repetition penalties and with suppressed ids at minus infinity."""
    vocab = logits.shape[-1]
    seen, factors, counts, suppressed = [], [], [], []
    for row, request in enumerate(requests):
        params = request.sampling
        if params.repetition_penalty != 1.0:
            if request.seen_ids is None:
                request.seen_ids = SeenIds(request.prompt_ids if params.penalize_prompt else (), vocab)
            ids = request.seen_ids.including(request.output_ids)
            seen.append(ids + row * vocab)
            factors.append(params.repetition_penalty)
            counts.append(len(ids))
        if params.suppressed_ids:
            suppressed.append(_as_index(params.suppressed_ids, vocab) + row * vocab)
    if not seen and not suppressed:
        return logits
    logits = logits.clone(memory_format=torch.contiguous_format)
    flat = logits.view(-1)
    if seen:
        index = torch.cat(seen).to(logits.device)
        factor = torch.tensor(factors).repeat_interleave(torch.tensor(counts)).to(logits.device)
        scores = flat[index]
        flat[index] = torch.where(scores < 0, scores * factor, scores / factor)
    if suppressed:
        flat[torch.cat(suppressed).to(logits.device)] = -math.inf
    return logits


_indices: dict[tuple[frozenset[int], int], torch.Tensor] = {}


def _as_index(ids: frozenset[int], vocab: int) -> torch.Tensor:
    """An index tensor for a set of ids; the few sets that a process uses are kept."""
    if (ids, vocab) not in _indices:
        if len(_indices) >= 64:
            _indices.clear()
        _indices[ids, vocab] = torch.tensor(sorted(i for i in ids if 0 <= i < vocab), dtype=torch.int64)
    return _indices[ids, vocab]


def candidates(logits: torch.Tensor, params: Sequence[SamplingParams]) -> tuple[torch.Tensor, torch.Tensor]:
    """What may be drawn from each row of ``logits`` (``[g, vocab]``): temperature, then top-k, top-p, min-p.

    The rows agree in ``top_k`` and in whether ``top_p`` is on. Returns ids and probabilities, ``[g, w]`` each, in order of
    id; what was filtered out has probability 0. Only what top-k leaves is sorted: a vocabulary has 150 000 ids.
    """

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=logits.device).unsqueeze(1)

    top_k, ordered = params[0].top_k, params[0].top_p < 1.0
    # Far above the smallest float, so that nothing overflows; so low a temperature leaves only the best id anyway.
    scaled = logits / column([max(each.temperature, 1e-5) for each in params])
    ids: torch.Tensor | None = None
    if 0 < top_k < logits.shape[-1]:
        best, ids = scaled.topk(top_k + 1)
        least = best[:, top_k - 1 : top_k]
        if bool((best[:, top_k:] == least).any()):  # what ties with the k-th stays, as in transformers
            best, ids = scaled.topk(int((scaled >= least).sum(-1).max()))
        else:
            best, ids = best[:, :top_k], ids[:, :top_k]
        scaled = best.masked_fill(best < least, -math.inf)
    elif ordered:
        scaled, ids = scaled.sort(dim=-1, descending=True)
    probabilities = scaled.softmax(-1)
    if ordered:
        # An id stays while the mass of the ids before it is below top_p, and the first always.
        dropped = probabilities.cumsum(-1) - probabilities >= column([each.top_p for each in params])
        dropped[:, 0] = False
        probabilities = probabilities.masked_fill(dropped, 0.0)
    if any(each.min_p > 0.0 for each in params):
        floor = column([each.min_p for each in params]) * probabilities.max(dim=-1, keepdim=True).values
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    if ids is None:
        ids = torch.arange(logits.shape[-1], device=logits.device).expand_as(probabilities)
    else:
        # By id, not by probability: two that are nearly equal would change places with the last bit of the logits.
        ids, order = ids.sort(dim=-1)
        probabilities = probabilities.gather(-1, order)
    return ids, probabilities / probabilities.sum(dim=-1, keepdim=True)


def draw(logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    """One id per row of ``logits`` (``[m, vocab]``), by inverting its cumulative distribution at its uniform in [0, 1)."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for row, each in enumerate(params):
        # Rows that take the same path share its arithmetic; the path is a function of a row's own parameters.
        groups.setdefault((each.top_k, each.top_p < 1.0), []).append(row)
    chosen = [0] * len(params)
    for rows in groups.values():
        part = logits if len(groups) == 1 else logits[rows]
        ids, probabilities = candidates(part, [params[row] for row in rows])
        cumulative = probabilities.double().cumsum(-1)
        total = cumulative[:, -1:]
        uniform = torch.tensor([uniforms[row] for row in rows], dtype=torch.float64, device=logits.device).unsqueeze(1)
        # Strictly below the total, so that rounding never lands behind the last id that may be drawn.
        target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
        picked = torch.searchsorted(cumulative, target, right=True)
        for row, token in zip(rows, ids.gather(-1, picked)[:, 0].tolist(), strict=True):
            chosen[row] = token
    return chosen


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
