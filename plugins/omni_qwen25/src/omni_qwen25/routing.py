"""The routes of a request that are not Qwen3-Omni's (:mod:`omni_qwen3.routing`). Plain functions without torch."""

from __future__ import annotations

from omni_core.api import OmniRequest, StagePayload
from omni_qwen3 import routing as qwen3_routing


def terminal_stages(request: OmniRequest) -> list[str]:
    """Return the terminal stages for a request. Raises as :func:`omni_qwen3.routing.terminal_stages`."""
    return qwen3_routing.terminal_stages(request, "mel2wav")


def route_thinker(request_id: str, output: StagePayload) -> list[str]:
    """Return the stages after the thinker, as :func:`omni_qwen3.routing.route_thinker`."""
    return qwen3_routing.route_thinker(request_id, output, "talker")
