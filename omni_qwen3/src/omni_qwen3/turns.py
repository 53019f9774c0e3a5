"""Finds the turns of a prompt."""

from __future__ import annotations

import torch

from omni_core.api import InvalidRequestError
from omni_qwen3.config import QwenConfig


def user_rows(ids: torch.Tensor, config: QwenConfig) -> torch.Tensor:
    """Return ``[P]`` bool: the positions from a user turn's ``<|im_start|>`` up to the next turn's."""
    indices = torch.arange(len(ids), device=ids.device)
    last_start = torch.where(ids == config.im_start, indices, -1).cummax(0).values.clamp(min=0)
    return ids[(last_start + 1).clamp(max=len(ids) - 1)] == config.user


def assistant_start(ids: torch.Tensor, config: QwenConfig) -> int:
    """Return the position at which the last assistant turn opens; a prompt always ends with one.

    Raises:
        InvalidRequestError: no assistant turn opens.
    """
    opens = ((ids[:-1] == config.im_start) & (ids[1:] == config.assistant)).nonzero()
    if not len(opens):
        raise InvalidRequestError(
            f"input_ids: the {len(ids)} tokens of the prompt open no assistant turn: it must end with "
            f"<|im_start|>assistant (ids {config.im_start}, {config.assistant}), as the chat template makes it"
        )
    return int(opens[-1])
