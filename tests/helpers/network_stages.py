"""Stages of a pipeline over two hosts: an answer tells which processes made it, and is checked bit by bit."""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from typing import Any

import numpy as np

from omni_core.protocol.messages import OmniRequest, StagePayload


def values(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def digest(of: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(of).tobytes()).hexdigest()


def make(payload: StagePayload) -> dict[str, Any]:
    inputs = payload.request.inputs
    return {**inputs, "values": values(inputs["seed"], inputs["count"])}


def route(request_id: str, output: StagePayload) -> Any:
    return output.data["to"]


def terminals(request: OmniRequest) -> list[str]:
    return ["near"] if request.inputs["to"] == "near" else ["last"]


def spend(seconds: float) -> None:
    """Sleep; if ``seconds`` is negative, without giving the interpreter to other threads: the process does nothing else."""
    if seconds >= 0:
        time.sleep(seconds)
    else:
        ctypes.PyDLL(None).usleep(round(-seconds * 1e6))


def far(payload: StagePayload) -> dict[str, Any]:
    spend(payload.data["seconds"])
    return {"values": payload.data["values"] * 2, "pid": os.getpid()}


def last(payload: StagePayload) -> dict[str, Any]:
    return {"digest": digest(payload.data["values"]), "pid": payload.data["pid"], "last": os.getpid()}


def near(payload: StagePayload) -> dict[str, Any]:
    time.sleep(payload.data["seconds"])
    return {"digest": digest(payload.data["values"]), "pid": os.getpid()}
