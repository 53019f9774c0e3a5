"""Chooses the terminal stages of a request of the feature tests; the parent imports this module."""

from __future__ import annotations

from omni_core.protocol.messages import OmniRequest


def chosen(request: OmniRequest) -> list[str]:
    return list(request.metadata["to"])
