"""The routes of a request that are not Qwen3-Omni's (:mod:`omni_qwen3.routing`). Plain functions without torch."""

from __future__ import annotations

from omni_core.errors import InvalidRequestError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_qwen3.routing import wants_audio


def terminal_stages(request: OmniRequest) -> list[str]:
    """Return the terminal stages for a request.

    Raises:
        InvalidRequestError: it requests audio without text.
    """
    if request.modalities is not None and "text" not in request.modalities:
        raise InvalidRequestError("modalities: must contain 'text', because audio is the spoken text")
    return ["decode", "mel2wav"] if wants_audio(request) else ["decode"]


def route_thinker(request_id: str, output: StagePayload) -> list[str]:
    """Return the stages after the thinker: ``talker`` only if speech is requested."""
    return ["decode", "talker"] if wants_audio(output.request) else ["decode"]
