"""Stages of a pipeline over two hosts, which other processes import, and a relay that is never used."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.relay.base import Relay, RelayOptions

logger = logging.getLogger(__name__)


class NoRelay(Relay):
    """The payloads of these stages travel in messages."""

    def __init__(self, options: RelayOptions) -> None:
        self.device = "cpu"

    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> Any:
        raise NotImplementedError

    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> Any:
        raise NotImplementedError

    def cleanup(self, request_id: str) -> None:
        pass

    def close(self) -> None:
        pass


def choose(payload: StagePayload) -> dict[str, Any]:
    return dict(payload.request.inputs)


def route(request_id: str, output: StagePayload) -> Any:
    return output.data["to"]


def terminals(request: OmniRequest) -> list[str]:
    return [request.inputs["to"]]


def work(payload: StagePayload) -> dict[str, Any]:
    time.sleep(payload.data.get("seconds", 0.0))
    if "says" in payload.data:
        logger.warning("%s", payload.data["says"])
    return {"pid": os.getpid(), "variable": os.environ.get("OMNI_TEST_VARIABLE", "")}


def big(payload: StagePayload) -> dict[str, Any]:
    import numpy as np

    return {"values": np.arange(payload.request.inputs["count"], dtype=np.float64)}


def total(payload: StagePayload) -> dict[str, Any]:
    return {"total": float(payload.data["values"].sum()), "pid": os.getpid()}


def broken(**arguments: Any) -> Any:
    """Raise, as a factory whose checkpoint is missing."""
    raise ValueError("no weights are here")
