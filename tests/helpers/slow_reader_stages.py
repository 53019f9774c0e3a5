"""Stages whose streams are made faster than they are read; children import this module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fault_stages import given

from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.base import OutgoingMessage
from omni_core.scheduling.loop import LoopScheduler

MIB = 2**20


def _note(inputs: dict[str, Any], number: int) -> None:
    """Write how many chunks were made into the file that the request names."""
    if "made" in inputs:
        Path(inputs["made"]).write_text(str(number))


def make(payload: StagePayload) -> Iterator[Any]:
    """Yield ``chunks`` arrays of ``nbytes`` bytes, each filled with its number; without an end if ``chunks`` is negative."""
    inputs = given(payload)
    number = 0
    while number != inputs.get("chunks", 0):
        number += 1
        yield number if "nbytes" not in inputs else np.full(inputs["nbytes"], number % 250, dtype=np.uint8)
        _note(inputs, number)
    return {"n": inputs["n"]}  # type: ignore[return-value]


class Puts(LoopScheduler):
    """As :func:`make`, in a scheduler that knows nothing of slow readers."""

    def turn(self) -> bool:
        message = self.inbox.get()
        if message is None:
            return False
        if message.request_id:
            values = make(message.data)
            for value in values:
                self.put_out(OutgoingMessage(message.request_id, "stream", value))
            self.put_out(OutgoingMessage(message.request_id, "result", {"n": message.data.data}))
        return True
