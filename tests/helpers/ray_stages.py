"""Stages of pipelines over the nodes of a cluster, which other processes import."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from omni_core.protocol.messages import StagePayload


def begin(payload: StagePayload) -> dict[str, Any]:
    """Make as many numbers as the request says."""
    inputs = payload.request.inputs
    values = np.arange(inputs.get("count", 1), dtype=np.float64)
    return {
        "values": values,
        "to": inputs.get("to", "one"),
        "seconds": inputs.get("seconds", 0.0),
        "pids": [os.getpid()],
    }


def route(request_id: str, output: StagePayload) -> Any:
    return output.data["to"]


def terminals(request: Any) -> list[str]:
    return [request.inputs.get("to", "one")]


def total(payload: StagePayload) -> dict[str, Any]:
    """Add the numbers up, after a while."""
    data = payload.data
    time.sleep(data["seconds"])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"total": float(data["values"].sum()), "pids": [*data["pids"], os.getpid()], "gpus": visible}


def device(device: str) -> Callable[[StagePayload], dict[str, Any]]:
    """Return a stage that says which device it was given."""

    def say(payload: StagePayload) -> dict[str, Any]:
        return {"device": device, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "pids": [os.getpid()]}

    return say
