"""Root mean square norm as a module."""

from __future__ import annotations

import torch
from torch import nn

from omni_torch.operations.shared import add_rms_norm, rms_norm


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``x + residual`` and its norm."""
        return add_rms_norm(x, residual, self.weight, self.eps)
