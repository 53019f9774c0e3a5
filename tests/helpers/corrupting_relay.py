"""Relays with one deliberate mistake over shared memory, and a pipeline of two processes to run by them."""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.errors import RelayError
from omni_core.protocol.messages import StagePayload
from omni_relay_shm.relay import ShmRelay


class FlipsAByte(ShmRelay):
    """Changes the first byte of what it delivers."""

    def get_view(self, metadata: Any, request_id: str | None = None) -> memoryview:
        delivered = bytearray(super().get_view(metadata, request_id))
        delivered[0] ^= 0xFF
        return memoryview(delivered).toreadonly()


class CannotRead(ShmRelay):
    """Fails every read."""

    def get_view(self, metadata: Any, request_id: str | None = None) -> memoryview:
        raise RelayError("the bytes are gone")


def make(payload: StagePayload) -> dict[str, Any]:
    return {"numbers": np.arange(2000, dtype=np.int32), "few": np.arange(4)}


def answer(payload: StagePayload) -> dict[str, Any]:
    return {"numbers": payload.data["numbers"] * 2, "sum": int(payload.data["few"].sum())}
