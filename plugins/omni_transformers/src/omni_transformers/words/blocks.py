"""The positions of a prompt that attend to each other, such as those of a picture, found out from the masks that a model makes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

_NAME = "omni-blocks"
"""An attention function, in transformers' table, whose masks are not made: their functions are kept."""

_functions: ContextVar[list[Callable[..., torch.Tensor]]] = ContextVar("functions")


def _mask(mask_function: Any, **given: Any) -> torch.Tensor:
    _functions.get().append(mask_function)
    return torch.ones(1, 1, 1, 1, dtype=torch.bool)


AttentionInterface.register(_NAME, AttentionInterface()["sdpa"])
AttentionMaskInterface.register(_NAME, _mask)


def blocks_of(model: Any, inputs: dict[str, Any]) -> torch.Tensor | None:
    """Return the blocks of a prompt as :attr:`omni_core.api.ARRequest.prompt_blocks` has them; ``None``: it is plainly causal.

    Args:
        inputs: of the model's forward, with a batch of one.

    Raises:
        RuntimeError: its masks are not those of blocks.
    """
    config = copy.deepcopy(model.config)
    config.get_text_config()._attn_implementation = _NAME
    ids = inputs["input_ids"]
    functions: list[Callable[..., torch.Tensor]] = []
    token = _functions.set(functions)
    try:
        model.create_masks_for_generate(
            config=config,
            inputs_embeds=torch.empty(*ids.shape, 0, dtype=model.dtype, device=ids.device),
            attention_mask=inputs.get("attention_mask"),
            past_key_values=None,
            position_ids=None,
            token_type_ids=inputs.get("token_type_ids"),
            mm_token_type_ids=inputs.get("mm_token_type_ids"),
            is_first_iteration=True,
        )
    finally:
        _functions.reset(token)
    blocks: torch.Tensor | None = None
    for function in functions:
        found = _blocks(function, ids.shape[1], ids.device)
        if blocks is not None and not torch.equal(found, blocks):
            raise _other()
        blocks = found
    return None if blocks is None or int(blocks.max()) < 0 else blocks


def _blocks(function: Callable[..., torch.Tensor], count: int, device: torch.device) -> torch.Tensor:
    """Return the blocks of a mask of so many positions."""
    zero = torch.zeros((), dtype=torch.long, device=device)
    places = torch.arange(count, device=device)

    def seen(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return function(zero, zero, rows, columns).expand(torch.broadcast_shapes(rows.shape, columns.shape))

    later = torch.zeros(count, dtype=torch.bool, device=device)
    later[:-1] = seen(places[:-1], places[1:])
    blocks = torch.full((count,), -1, device=device)
    number = 0
    for first in (later & ~later.roll(1)).nonzero().flatten():
        if blocks[first] < 0:
            blocks[seen(first, places) & seen(places, first)] = number
            number += 1
    same = (blocks.unsqueeze(0) == blocks[_rows(blocks)].unsqueeze(1)) & (blocks >= 0)
    rows = _rows(blocks).unsqueeze(1)
    told = seen(rows, places)
    if bool((told & (places > rows) & ~same).any()) or bool((same & ~told).any()):
        raise _other()
    return blocks.cpu()


def _rows(blocks: torch.Tensor) -> torch.Tensor:
    """Return the positions whose masks are compared: those beside the edges of blocks, and some others."""
    edges = (blocks[1:] != blocks[:-1]).nonzero().flatten()
    some = torch.linspace(0, len(blocks) - 1, 32, device=blocks.device).long()
    return torch.cat([some, edges, edges + 1])


def _other() -> RuntimeError:
    return RuntimeError("it makes masks for its media that the engine has not; choose backend=steps")
