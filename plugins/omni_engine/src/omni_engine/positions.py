"""What a request holds at each position of its sequence: ids, rotary positions, and a name for what it computes there."""

from __future__ import annotations

import hashlib
from array import array

import torch

from omni_core.model_runner.types import ARRequest


def ids(request: ARRequest, start: int, count: int) -> list[int]:
    """Token ids of a run: the prompt's, then what was generated."""
    prompt = len(request.prompt_ids)
    if start >= prompt:
        return request.output_ids[start - prompt : start - prompt + count]
    return (request.prompt_ids[start : start + count] + request.output_ids)[:count]


def rotary(request: ARRequest, start: int, count: int) -> torch.Tensor:
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


def packed_rotary(requests: list[ARRequest], starts: list[int], lengths: list[int]) -> torch.Tensor:
    """:func:`rotary` of several runs, one after the other: ``[n]``, or ``[3, n]`` if any request has three axes."""
    axes = any(r.prompt_positions is not None and r.prompt_positions.dim() == 2 for r in requests)
    if all(start >= len(r.prompt_ids) for r, start in zip(requests, starts, strict=True)) and max(lengths) == 1:
        # A step of decodes: worth its own way, because it comes for every token.
        packed = torch.tensor([start + r.position_delta for r, start in zip(requests, starts, strict=True)])
        return packed.expand(3, -1) if axes else packed
    runs = [rotary(*run) for run in zip(requests, starts, lengths, strict=True)]
    if axes:
        runs = [run if run.dim() == 2 else run.expand(3, -1) for run in runs]
    return torch.cat(runs, dim=-1)


class BlockKeys:
    """Names of a request's full blocks. Two blocks with one name hold the same K and V, whosever they are.

    A name is a hash over everything that a block's K and V are a function of: the name of the block before it, and the block's
    token ids, rotary positions and the digests of the content that its positions stand for.
    """

    def __init__(self, request: ARRequest, block_size: int) -> None:
        self._request, self._size = request, block_size
        self._keys: list[bytes] = []
        self._prompt = _identified(request)

    def first(self, positions: int) -> list[bytes]:
        """The names of the full blocks among the first ``positions`` positions that can be named."""
        known = len(self._keys) * self._size
        full = min(positions, self._named()) // self._size * self._size
        if full > known:
            self._extend(known, full)
        return self._keys[: full // self._size]

    def _named(self) -> int:
        """Positions from the first whose input is told by ids and digests alone."""
        request = self._request
        if self._prompt < len(request.prompt_ids) or request.output_embeds:
            return self._prompt
        return request.length

    def _extend(self, start: int, end: int) -> None:
        tokens = array("q", ids(self._request, start, end - start)).tobytes()
        places = rotary(self._request, start, end - start).reshape(-1, end - start).T.contiguous().numpy().tobytes()
        for begin in range(start, end, self._size):
            key = hashlib.blake2b(self._keys[-1] if self._keys else b"", digest_size=16)
            for whole in (tokens, places):
                width = len(whole) // (end - start)
                key.update(whole[(begin - start) * width : (begin - start + self._size) * width])
            for span in self._request.content or ():
                first, last = max(span.start, begin), min(span.end, begin + self._size)
                if first < last:
                    key.update(b"%d:%d:%d:" % (first - begin, last - begin, len(span.digest)) + span.digest)
            self._keys.append(key.digest())


def _identified(request: ARRequest) -> int:
    """Prompt positions from the first whose input is told by ids and digests: a bare embedding ends them."""
    if request.content is None and request.prompt_embeds is not None:
        return 0
    if min(request.prompt_ids, default=0) >= 0:
        return len(request.prompt_ids)
    covered = {position for span in request.content or () for position in range(span.start, span.end)}
    for position, token in enumerate(request.prompt_ids):
        if token < 0 and position not in covered:
            return position
    return len(request.prompt_ids)
