"""A stage that counts words while they come, and one that repeats what it is told: pipelines whose input is a stream."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.interface import Interface
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import TextChunk
from omni_core.scheduling.streaming import StreamingScheduler


class CountWords(StreamingScheduler[list[str]]):
    """Counts the words of a text that is still being written. ``delay``: seconds for each chunk.

    From the word "hold" on, senders of that request wait, until another request has the word "go".
    """

    def __init__(self, delay: float = 0.0) -> None:
        super().__init__()
        self._delay = delay
        self._held: list[str] = []

    def new_state(self, request_id: str, request: OmniRequest | None) -> list[str]:
        return [request_id, ""]

    def on_chunk(self, state: list[str], chunk: Any, metadata: dict[str, Any] | None) -> None:
        time.sleep(self._delay)
        text = chunk.text if isinstance(chunk, TextChunk) else f"{len(chunk.samples)} "
        if "fail" in text:
            raise ValueError("a word that fails")
        if "die" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hold" in text:
            self._held.append(state[0])
            self.hold_input(state[0], True)
        if "go" in text:
            self.hold_input(self._held.pop(), False)
        state[1] += text
        self.emit(state[0], len(state[1].split()))

    def finish(self, request_id: str, state: list[str]) -> int:
        return len(state[1].split())


def word_pipeline(folder: Path, delay: float = 0.0, **fields: Any) -> PipelineConfig:
    """A pipeline of one stage that takes texts and sounds."""
    count = StageConfig(
        name="count", process="count", factory="word_stages:CountWords", factory_args={"delay": delay}, terminal=True
    )
    return PipelineConfig(
        model_path="none",
        name="words",
        stages=[count],
        interface=fields.pop("interface", Interface(input_streams=["text", "audio"])),
        endpoints=EndpointsConfig(str(folder)),
        **fields,
    )
