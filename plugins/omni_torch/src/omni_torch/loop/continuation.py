"""Continues a finished request in place: a next turn, a next sentence, on the same cached positions."""

from __future__ import annotations

import torch

from omni_core.api import ARRequest, RandomStream


def extend(request: ARRequest, ids: list[int], embeds: torch.Tensor | None = None) -> None:
    """Continue a request after its end: what was generated and fed becomes prompt, and ``ids`` follow it.

    The newest generated id, whose position was never computed, is dropped; put it first in ``ids`` to keep it. Cached
    positions stay valid. ``max_new_tokens`` counts anew; a repetition penalty remembers what it has seen; random numbers are
    new ones, from the same seed.

    Args:
        embeds: ``[len(ids), hidden]``: required where the prompt has embeddings, else ``None``.

    Raises:
        ValueError: embeddings for some positions only, or not one per id.
    """
    fed = request.output_ids[:-1]
    if (embeds is None) != (request.prompt_embeds is None) or (embeds is not None and len(embeds) != len(ids)):
        raise ValueError("extend: embeddings are given for every position of a request, or for none")
    if request.prompt_embeds is None and request.output_embeds:
        raise ValueError("extend: a request whose outputs are fed as embeddings needs a prompt of embeddings")
    if request.prompt_embeds is not None and len(request.output_embeds) != len(fed):
        raise ValueError("extend: a prompt of embeddings cannot go on after outputs that are fed as ids")
    if request.prompt_positions is not None:
        start = len(request.prompt_ids) + request.position_delta
        tail = torch.arange(len(fed) + len(ids)) + start
        request.prompt_positions = torch.cat(
            [request.prompt_positions, tail.expand(*request.prompt_positions.shape[:-1], -1)], dim=-1
        )
    if request.prompt_embeds is not None and embeds is not None:
        request.prompt_embeds = torch.cat(
            [request.prompt_embeds, *[each.unsqueeze(0) for each in request.output_embeds], embeds]
        )
    if request.seen_ids is not None:
        request.seen_ids.restart()
    request.random = RandomStream(int(request.random.uniform(request.length, 0, 0) * 2**53), request.random.stream)
    request.prompt_ids = [*request.prompt_ids, *fed, *ids]
    request.output_ids, request.output_embeds = [], []
    request.finish_reason = None
