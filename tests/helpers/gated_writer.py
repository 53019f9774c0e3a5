"""A model that writes, and stops before a word until somebody opens a door: tests do that when they have heard something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_core.api import OutgoingMessage, Scheduler, TextChunk
from omni_transformers.words.engine import create_answer


def create_gated(model_path: str, door: str, word: str, device: str = "cpu", **arguments: Any) -> Scheduler:
    """Return the stage that writes. ``door``: a named pipe, which is read before the chunk ``word`` goes out."""
    scheduler = create_answer(model_path, device=device, **arguments)
    put = scheduler.outbox.put

    def gated(message: OutgoingMessage) -> None:
        if isinstance(message.data, TextChunk) and message.data.text == word:
            Path(door).read_text()
        put(message)

    scheduler.outbox.put = gated  # type: ignore[method-assign,assignment]
    return scheduler
