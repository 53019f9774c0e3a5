"""Attention over the paged cache: the contract, its implementations, and the choice between them."""

from __future__ import annotations

from omni_torch.engine.attention.base import AttentionBackend, PageTables, StepAttention
from omni_torch.engine.attention.choice import BACKENDS, choose
from omni_torch.engine.attention.sdpa import PagedAttention, SdpaBackend

__all__ = [
    "BACKENDS",
    "AttentionBackend",
    "PageTables",
    "PagedAttention",
    "SdpaBackend",
    "StepAttention",
    "choose",
]
