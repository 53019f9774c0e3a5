"""Parts that tests of capsules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_capsules.capsule import Capsule
from omni_core.protocol.messages import OmniRequest, StagePayload

MakeCapsule = Callable[..., Capsule]


def payload(data: Any, request_id: str = "r") -> StagePayload:
    return StagePayload(request_id, OmniRequest(), data)
