"""Chooses tokens: penalties, filters and the draw, in the order and with the meaning of transformers' logits processors.

A request's choice depends on its own logits, parameters and random numbers only, not on the rest of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from omni_core.api import ARRequest, SamplingParams, checked
from omni_torch.operations.kernels import operation
from omni_torch.runners.transfers import all_to_device, to_device
from omni_torch.sampling.parameters import SAMPLING
from omni_torch.sampling.seen_ids import SeenIds


def sample(logits: torch.Tensor, requests: Sequence[ARRequest]) -> list[int]:
    """Choose the next token id of each request. With logits on a GPU, the host waits once, for the ids.

    Args:
        logits: ``[m, vocab]``, one row per request. Not changed.
        requests: the requests, whose ``output_ids`` count as history.

    Raises:
        FloatingPointError: a row has no finite largest value: NaN in the model, or every id suppressed.
    """
    logits = constrained(penalized(logits.float(), requests), requests)
    if all(each.sampling.temperature == 0 for each in requests):
        chosen = _best(logits)
    else:
        uniforms = [each.random.uniform(len(each.output_ids)) for each in requests]
        chosen = draw(logits, [each.sampling for each in requests], uniforms)
    if -1 in chosen:
        row = chosen.index(-1)
        raise FloatingPointError(
            f"request {requests[row].request_id}: no token can be chosen at position {requests[row].length}, the largest logit "
            f"is {logits[row].max()}; check for NaN in its inputs and in the weights, and for suppressed_ids that cover the "
            "vocabulary, or what `structured` allows"
        )
    return chosen


def _best(logits: torch.Tensor) -> list[int]:
    """Return the id of each row's largest value; -1 where that is not finite."""
    if logits.device.type == "cpu":  # NumPy's search is vectorised: a tenth of the time with 32,000 values
        rows = logits.detach().numpy()
        return [
            best if math.isfinite(row[best]) else -1 for row, best in zip(rows, rows.argmax(-1).tolist(), strict=True)
        ]
    values, indices = logits.max(dim=-1)
    chosen: list[int] = indices.where(values.isfinite(), -1).tolist()
    return chosen


def penalized(logits: torch.Tensor, requests: Sequence[ARRequest]) -> torch.Tensor:
    """Return ``logits`` (``[m, vocab]``) after repetition penalties, with suppressed ids at minus infinity."""
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
        factor = torch.tensor(factors).repeat_interleave(torch.tensor(counts))
        index, factor = all_to_device([torch.cat(seen), factor], logits.device)
        scores = flat[index]
        flat[index] = torch.where(scores < 0, scores * factor, scores / factor)
    if suppressed:
        flat[to_device(torch.cat(suppressed), logits.device)] = -math.inf
    return logits


def constrained(logits: torch.Tensor, requests: Sequence[ARRequest]) -> torch.Tensor:
    """Return ``logits`` (``[m, vocab]``) with minus infinity at the ids that the constraints of requests forbid."""
    rows, allowed = [], []
    for row, request in enumerate(requests):
        found = None if request.constraint is None else request.constraint.allowed(request.output_ids)
        if found is not None:
            rows.append(row)
            allowed.append(found)
    if not rows:
        return logits
    forbidden = to_device(torch.stack(allowed).logical_not_(), logits.device)
    if len(rows) == len(requests):
        return logits.masked_fill(forbidden, -math.inf)
    index = to_device(torch.tensor(rows), logits.device)
    return logits.index_copy(0, index, logits[index].masked_fill_(forbidden, -math.inf))


def keep_logprobs(logits: torch.Tensor, requests: Sequence[ARRequest], chosen: Sequence[int]) -> None:
    """Add to ``ARRequest.logprobs`` of those that ask for them, from the model's own ``logits`` (``[m, vocab]``)."""
    asking = [(row, most) for row, each in enumerate(requests) if (most := each.sampling.logprobs) is not None]
    if not asking:
        return
    index, ids = all_to_device(
        [torch.tensor([row for row, _ in asking]), torch.tensor([chosen[row] for row, _ in asking])], logits.device
    )
    values = logits[index].float().log_softmax(-1)
    own = values.gather(-1, ids.unsqueeze(1))[:, 0].tolist()
    best = values.topk(min(max(most for _, most in asking), values.shape[-1]))
    for (row, most), mine, top, top_ids in zip(asking, own, best.values.tolist(), best.indices.tolist(), strict=True):
        likely = list(zip(top_ids[:most], top[:most], strict=True))
        requests[row].logprobs.append([(chosen[row], mine), *likely])


_indices: dict[tuple[frozenset[int], int], torch.Tensor] = {}


def _as_index(ids: frozenset[int], vocab: int) -> torch.Tensor:
    """Return an index tensor for a set of ids; the few sets that a process uses are cached."""
    if (ids, vocab) not in _indices:
        if len(_indices) >= 64:
            _indices.clear()
        _indices[ids, vocab] = torch.tensor(sorted(i for i in ids if 0 <= i < vocab), dtype=torch.int64)
    return _indices[ids, vocab]


def draw(logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    """Call :func:`sample_tokens` with a request's parameters and a uniform number for each row."""
    rows = [(each.temperature, each.top_k, each.top_p, each.min_p, u) for each, u in zip(params, uniforms, strict=True)]
    columns = to_device(torch.tensor(list(zip(*rows, strict=True)), dtype=torch.float64), logits.device)
    chosen: list[int] = sample_tokens(logits, *columns.unbind()).tolist()
    return chosen


def _examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """Return examples of every filter alone and combined, in vocabularies of several sizes.

    A row's uniform number lies in the middle of an id's share, so that the id is the same however sums are rounded.
    """
    device = generator.device
    settings = [
        [0.0, 1.0, 0.7, 1.0, 0.9, 1.3, 1.0, 1.0, 0.6, 1e-3],  # temperature
        [0.0, 0.0, 50.0, 1.0, 0.0, 0.0, 50.0, 150.0, 20.0, 0.0],  # top-k
        [1.0, 1.0, 1.0, 1.0, 0.9, 1.0, 0.8, 0.5, 0.95, 0.3],  # top-p
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.02, 0.5],  # min-p
    ]
    columns = torch.tensor(settings, device=device).unbind()
    examples = []
    for vocab in (200, 3072, 152064):
        logits = torch.randn(len(settings[0]), vocab, generator=generator, device=device).mul(3).to(dtype)
        uniforms = torch.rand(len(logits), generator=generator, device=device, dtype=torch.float64)
        cumulative = _probabilities(logits.double(), *columns).cumsum(-1)
        ids = _positions(cumulative, uniforms)
        ends = cumulative.gather(-1, ids)
        begins = cumulative.gather(-1, (ids - 1).clamp(min=0)).masked_fill(ids == 0, 0.0)
        examples.append((logits, *columns, ((begins + ends) / 2 / cumulative[:, -1:]).squeeze(1)))
    return examples


@operation("sample_tokens", examples=_examples)
def sample_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """Choose one id per row: temperature, top-k, top-p, min-p, then the inverse of the cumulative distribution in order of id.

    Ids that tie with the last one that top-k or top-p keeps are kept too.

    Args:
        logits: ``[m, vocab]``. Not changed.
        temperature: ``[m]``; 0 chooses the best id; of those that tie, a CPU and a kernel choose the lowest.
        top_k: ``[m]``, whole numbers of any dtype; 0: off.
        top_p: ``[m]``; 1: off.
        min_p: ``[m]``; 0: off.
        uniforms: ``[m]`` float64 in [0, 1), at which each row's distribution is inverted.

    Returns:
        ``[m]`` int64; -1 for a row without a finite largest logit. The host does not wait for the device.
    """
    choose = _choose_by_path if logits.device.type == "cpu" else _choose_alike
    return choose(logits, temperature, top_k, top_p, min_p, uniforms)


def _choose_alike(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """Apply every filter to every row, so that no value decides which code runs and the host does not wait for a GPU."""
    highest = logits.max(dim=-1)
    cumulative = _probabilities(logits, temperature, top_k, top_p, min_p).double().cumsum(-1)
    drawn = _positions(cumulative, uniforms)[:, 0]
    return drawn.where(temperature > 0, highest.indices).where(highest.values.isfinite(), -1)


def _probabilities(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Return the probability of each id after the filters, ``[m, vocab]``, not normalised. Sorts the vocabulary."""
    vocab = logits.shape[-1]
    scaled, ids = _scaled(logits, temperature).sort(dim=-1, descending=True)
    last = torch.where((top_k > 0) & (top_k < vocab), top_k, vocab).to(torch.int64).unsqueeze(1) - 1
    probabilities = scaled.masked_fill(scaled < scaled.gather(-1, last), -math.inf).softmax(-1)
    dropped = _outside(scaled, probabilities, top_p) & (top_p < 1.0).unsqueeze(1)
    probabilities = _above(probabilities.masked_fill(dropped, 0.0), min_p)
    return torch.zeros_like(probabilities).scatter(-1, ids, probabilities)


def _choose_by_path(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """Group the rows by the filters that their own parameters turn on, and compute each group with those filters only."""
    floors: list[float] = min_p.tolist()
    columns = (each.tolist() for each in (logits.amax(-1), temperature, top_k, top_p))
    paths: dict[tuple[int, bool] | None, list[int]] = {}
    for row, (highest, heat, k, p) in enumerate(zip(*columns, strict=True)):
        if math.isfinite(highest):
            paths.setdefault((int(k), p < 1.0) if heat > 0 else None, []).append(row)
    chosen = torch.full(logits.shape[:1], -1)
    params = logits, temperature, top_p, min_p, uniforms
    for path, rows in paths.items():
        filters = path and (*path, any(floors[row] > 0.0 for row in rows))
        if len(rows) == len(logits):
            return _along(filters, *params)
        index = torch.tensor(rows)
        chosen[index] = _along(filters, *(each.index_select(0, index) for each in params))
    return chosen


def _along(
    filters: tuple[int, bool, bool] | None,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """Choose ids of rows with the same ``filters``: their top-k, and True for top-p and for min-p if they are on;
    ``None``: temperature 0.
    """
    if filters is None:
        return logits.argmax(-1)
    top_k, nucleus, floor = filters
    ids, probabilities = candidates(logits, temperature, top_k, top_p if nucleus else None, min_p if floor else None)
    return ids.gather(-1, _positions(probabilities.double().cumsum(-1), uniforms))[:, 0]


def candidates(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: int = 0,
    top_p: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the candidates of each row of ``logits`` (``[g, vocab]``) after temperature, top-k, top-p and min-p.

    The rows have the same ``top_k``; the other parameters are ``[g]``. Returns ids and probabilities, ``[g, w]`` each, in order of
    id; ids that were filtered out have probability 0. Only what top-k leaves is sorted: a vocabulary has 150 000 ids.
    """
    scaled = _scaled(logits, temperature)
    ids: torch.Tensor | None = None
    if 0 < top_k < logits.shape[-1]:
        largest, ids = scaled.topk(top_k + 1)
        least = largest[:, top_k - 1 : top_k]
        if bool((largest[:, top_k:] == least).any()):  # ids that tie with the k-th stay, as in transformers
            largest, ids = scaled.topk(int((scaled >= least).sum(-1).max()))
            scaled = largest.masked_fill(largest < least, -math.inf)
        else:
            scaled, ids = largest[:, :top_k], ids[:, :top_k]
    elif top_p is not None:
        scaled, ids = scaled.sort(dim=-1, descending=True)
    probabilities = scaled.softmax(-1)
    if top_p is not None:
        probabilities = probabilities.masked_fill(_outside(scaled, probabilities, top_p), 0.0)
    if min_p is not None:
        probabilities = _above(probabilities, min_p)
    # By id, not by probability: two that are nearly equal would change places with the last bit of the logits.
    if ids is None or ids.shape == logits.shape:
        probabilities = (
            probabilities if ids is None else torch.zeros_like(probabilities).scatter(-1, ids, probabilities)
        )
        ids = torch.arange(logits.shape[-1], device=logits.device).expand_as(probabilities)
    else:
        ids, order = ids.sort(dim=-1)
        probabilities = probabilities.gather(-1, order)
    return ids, probabilities / probabilities.sum(dim=-1, keepdim=True)


def _scaled(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    # Far above the smallest float, so that nothing overflows; so low a temperature leaves only the best id anyway.
    return logits / temperature.unsqueeze(1).to(logits.dtype).clamp(min=1e-5)


def _outside(scaled: torch.Tensor, probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return the mask of ids that top-p drops; both inputs descend. An id stays while the mass before it is below ``top_p``,
    and so do the first one and ties.
    """
    # Above 0, so that the first stays.
    share = top_p.unsqueeze(1).to(probabilities.dtype).clamp(min=1e-30)
    dropped = probabilities.cumsum(-1) - probabilities >= share
    return scaled < scaled.masked_fill(dropped, math.inf).amin(dim=-1, keepdim=True)


def _above(probabilities: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Return ``probabilities`` with 0 for the ids that min-p drops."""
    floor = min_p.to(probabilities.dtype).unsqueeze(1) * probabilities.amax(dim=-1, keepdim=True)
    return probabilities.masked_fill(probabilities < floor, 0.0)


def _positions(cumulative: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return ``[m, 1]``: the index at which a row of ``cumulative`` (``[m, w]``, float64) exceeds its uniform share of the total."""
    total = cumulative[:, -1:]
    # At most the largest float below the total, so that rounding never selects an id after the last candidate.
    target = torch.minimum(uniforms.unsqueeze(1) * total, total * (1 - 2**-53))
    return torch.searchsorted(cumulative, target, right=True)


def sampling_from(given: dict[str, Any], where: str, **fixed: Any) -> SamplingParams:
    """Return the sampling parameters of a request, checked against :data:`omni_torch.sampling.parameters.SAMPLING`.

    Args:
        given: what the request says.
        where: its path, for error messages.
        fixed: the stage's own fields of :class:`SamplingParams`. Sets of ids are joined with the request's.

    Raises:
        InvalidRequestError: an unknown name or a value out of range.
    """
    values = {**checked(SAMPLING, given, where), **fixed}
    for name in ("stop_ids", "suppressed_ids"):
        values[name] = frozenset(given.get(name) or ()) | frozenset(fixed.get(name, ()))
    return SamplingParams(**values)
