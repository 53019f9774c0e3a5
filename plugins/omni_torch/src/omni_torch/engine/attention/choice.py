"""Chooses the attention backend of a cache: the configured one, or the best that can work here."""

from __future__ import annotations

import torch

from omni_core.api import ConfigError, KVLayout
from omni_torch.engine.attention.base import AttentionBackend
from omni_torch.engine.attention.flashinfer import FlashInferBackend
from omni_torch.engine.attention.sdpa import SdpaBackend

BACKENDS: dict[str, type[AttentionBackend]] = {each.name: each for each in (FlashInferBackend, SdpaBackend)}
"""Best first."""


def choose(name: str, device: torch.device, layout: KVLayout, block_size: int) -> type[AttentionBackend]:
    """Return the backend ``name``; for ``"auto"``, the first of :data:`BACKENDS` that can work.

    Raises:
        ConfigError: no such backend exists, or it cannot work here; the message says why.
    """
    if name == "auto":
        return next(each for each in BACKENDS.values() if each.probe(device, layout, block_size) is None)
    if name not in BACKENDS:
        raise ConfigError(f"attention: {name!r} is unknown; there are: auto, {', '.join(BACKENDS)}")
    reason = BACKENDS[name].probe(device, layout, block_size)
    if reason is not None:
        raise ConfigError(f"attention: {name!r} cannot work here: {reason}")
    return BACKENDS[name]
