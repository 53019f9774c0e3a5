"""The servers of ``live.py``: a recogniser that costs nothing, or a model's; it hears streams (``live``) or to whole turns (``whole``).

python live_apps.py live|whole [FOLDER]     # prints the port
"""

from __future__ import annotations

import asyncio
import io
import sys
import wave
from typing import Any

import numpy as np
from attrs import define, evolve
from serve_apps import serve

from omni_core import open_async
from omni_core.api import (
    TRANSCRIPTION,
    AudioChunk,
    Interface,
    OmniRequest,
    PipelineConfig,
    StageConfig,
    StagePayload,
    StreamingScheduler,
    Transcript,
    TranscriptChunk,
)
from omni_serve import Settings, create_app
from omni_serve.settings import RealtimeLimits

WORD_SECONDS = 0.25
"""The length of a word of the recogniser that costs nothing: the n-th is said when so much sound has come n times."""


@define
class Heard:
    """The sound of a turn so far."""

    request_id: str
    seconds: float = 0.0
    words: int = 0


class Count(StreamingScheduler[Heard]):
    """Says the number of each quarter of a second as soon as it has heard it."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> Heard:
        return Heard(request_id)

    def on_payload(self, state: Heard, payload: StagePayload) -> None:
        for message in payload.request.inputs["messages"]:
            with wave.open(io.BytesIO(message["content"][0]["data"])) as file:
                samples = np.zeros(file.getnframes(), np.float32)
                self.on_chunk(state, AudioChunk(samples, file.getframerate()), None)

    def on_chunk(self, state: Heard, chunk: AudioChunk, metadata: dict[str, Any] | None) -> None:
        state.seconds += len(chunk.samples) / chunk.sample_rate
        while state.seconds + 1e-6 >= (state.words + 1) * WORD_SECONDS:
            state.words += 1
            self.emit(state.request_id, TranscriptChunk(f" {state.words}" if state.words > 1 else "1"))

    def finish(self, request_id: str, state: Heard) -> Transcript:
        return Transcript(" ".join(str(n + 1) for n in range(state.words)))


def counting() -> PipelineConfig:
    """The recogniser that costs nothing, in the server's process."""
    interface = Interface(roles={TRANSCRIPTION: "count"}, inputs=["audio"], input_streams=["audio"], outputs=["text"])
    stage = StageConfig(name="count", process="count", factory="live_apps:Count", terminal=True)
    return PipelineConfig(model_path="none", name="live", stages=[stage], interface=interface)


def of_model(folder: str) -> PipelineConfig:
    """The pipeline that ``omni serve FOLDER`` runs."""
    from omni_cli.deploy.source import LayeredSource

    config = LayeredSource(folder, None, {}, {}, None, dashes="").resolve(None).config
    if config.interface is None or "audio" not in config.interface.input_streams:
        raise SystemExit(f"{folder}: its pipeline takes no sound that is still coming")
    return config


async def main(name: str, folder: str | None = None) -> None:
    config = of_model(folder) if folder else counting()
    assert config.interface is not None
    limits = RealtimeLimits(sessions=4096, sessions_per_key=4096, memory_mib=2048, idle_seconds=3600)
    settings = Settings(model="live", concurrent=2048, warm_up=False, realtime=limits)
    async with open_async(evolve(config, max_in_flight=4096)) as pipe:
        app = create_app(pipe, settings)
        if name == "whole":
            app.state.server.interface = evolve(config.interface, input_streams=[])
        await serve(app)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
