"""Which positions of a prompt belong to whom."""

from __future__ import annotations

import torch

from omni_qwen3.config import QwenConfig


def user_rows(ids: torch.Tensor, config: QwenConfig) -> torch.Tensor:
    """``[P]`` bool: positions from a user turn's ``<|im_start|>`` up to the next turn's."""
    indices = torch.arange(len(ids), device=ids.device)
    last_start = torch.where(ids == config.im_start, indices, -1).cummax(0).values.clamp(min=0)
    return ids[(last_start + 1).clamp(max=len(ids) - 1)] == config.user


def assistant_start(ids: torch.Tensor, config: QwenConfig) -> int:
    """Where the last assistant turn opens; the prompt always ends with one."""
    opens = (ids[:-1] == config.im_start) & (ids[1:] == config.assistant)
    return int(opens.nonzero()[-1])
