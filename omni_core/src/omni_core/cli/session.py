"""One reply of a pipeline as it comes: its text to a display, its speech to whatever takes samples, both as JSON at its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import click
from attrs import define, field

from omni_core.cli.display import Display
from omni_core.cli.generation import Generation
from omni_core.cli.out import STANDARD_OUTPUT
from omni_core.client import Client, open_pipeline
from omni_core.client.wav import WavWriter
from omni_core.config.schema import PipelineConfig
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioChunk, AudioResult, TextChunk, TextResult


class Screen(Protocol):
    """Where a reply is shown."""

    def text(self, piece: str) -> None:
        """Show a piece of text."""

    def audio(self, seconds: float) -> None:
        """Show the seconds of speech so far."""


class SpeechSink(Protocol):
    """Where speech goes."""

    def write(self, samples: Any, sample_rate: int) -> None:
        """Take float32 samples in [-1, 1], shape ``[n]``."""


@define
class Reply:
    """A reply as it was shown."""

    text: str = ""
    audio_seconds: float | None = None
    details: dict[str, Any] = field(factory=dict)

    @property
    def notices(self) -> list[str]:
        """What the pipeline says about the reply."""
        return list(self.details.get("notices", []))


async def receive(client: Client, request: OmniRequest, screen: Screen, sinks: Sequence[SpeechSink] = ()) -> Reply:
    """Send one request and show its reply as it comes; every piece of speech goes to all of ``sinks``."""
    reply, streamed_text = Reply(), False
    async for event in client.stream(request):
        data = event.data
        if isinstance(data, TextChunk):
            streamed_text = True
            screen.text(data.text)
        elif isinstance(data, TextResult):
            reply.text = data.text
            if not streamed_text:  # a pipeline need not stream
                screen.text(data.text)
            reply.details |= {"finish_reason": data.finish_reason, "usage": data.usage, "notices": data.notices}
        elif isinstance(data, AudioChunk | AudioResult):
            seconds = len(data.samples) / data.sample_rate
            if isinstance(data, AudioChunk) or reply.audio_seconds is None:
                for sink in sinks if len(data.samples) else ():
                    sink.write(data.samples, data.sample_rate)
            if isinstance(data, AudioResult):
                reply.audio_seconds = seconds
            else:
                reply.audio_seconds = (reply.audio_seconds or 0.0) + seconds
                screen.audio(reply.audio_seconds)
        elif event.final:
            reply.details[event.stage] = data
            screen.text(f"{data}\n")
    return reply


async def one_reply(
    config: PipelineConfig,
    notices: list[str],
    generation: Generation,
    messages: list[dict[str, Any]],
    out: Path | None,
    trace: Path | None = None,
    *,
    as_json: bool,
) -> None:
    """Run the pipeline for one request: ``omni run``."""
    writer = WavWriter(sys.stdout.buffer if out == STANDARD_OUTPUT else out) if out is not None else None
    with Display(quiet=as_json, text_to=sys.stderr if out == STANDARD_OUTPUT else None) as display:
        for notice in notices:
            display.notice(notice)
        async with open_pipeline(config, on_progress=display.stage) as client:
            display.clear()
            if trace is not None:
                await client.start_profile()
            try:
                reply = await receive(client, generation.request(messages), display, [writer] if writer else [])
            finally:
                if writer is not None:
                    writer.close()
                if trace is not None:
                    summary = await client.stop_profile(trace)
            for line in [*reply.notices, *_about_speech(reply, out)]:
                display.notice(line)
            if trace is not None:
                display.notice(f"{summary.events} events in {trace}; open it at https://ui.perfetto.dev")
    if as_json:
        file = str(out) if out else None
        document = {"text": reply.text, "audio_seconds": reply.audio_seconds, "audio_file": file, **reply.details}
        click.echo(json.dumps(document, default=str))


def _about_speech(reply: Reply, out: Path | None) -> list[str]:
    if reply.audio_seconds == 0.0:
        written = f"; {out} is not written." if out else "."
        return [f"The model said nothing: the reply has no speech{written}"]
    if reply.audio_seconds and out is not None and out != STANDARD_OUTPUT:
        return [f"{reply.audio_seconds:.2f} s of speech in {out}"]
    return []
