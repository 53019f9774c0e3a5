"""One reply of a pipeline as it comes: its text to a display, its speech to whatever takes samples, all of it as JSON at its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import click

from omni_core.cli.display import Display
from omni_core.cli.generation import Generation
from omni_core.cli.out import STANDARD_OUTPUT
from omni_core.client import AsyncPipe, AudioPiece, Reply, open_async
from omni_core.client.replies import Collector
from omni_core.client.wav import WavWriter
from omni_core.config.schema import PipelineConfig
from omni_core.protocol.messages import OmniRequest


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


async def receive(pipe: AsyncPipe, request: OmniRequest, screen: Screen, sinks: Sequence[SpeechSink] = ()) -> Reply:
    """Send one request and show its reply as it comes; every piece of speech goes to all of ``sinks``."""
    collector, seconds = Collector("", pipe.interface), 0.0
    async for event in pipe.stream(request):
        for piece in collector.add(event):
            if isinstance(piece, AudioPiece):
                for sink in sinks:
                    sink.write(piece.samples, piece.sample_rate)
                seconds += piece.seconds
                screen.audio(seconds)
            else:
                screen.text(piece.text)
    reply = collector.reply()
    for name in reply.outputs.keys() - {"text", "audio"}:
        screen.text(f"{reply.outputs[name]}\n")
    return reply


def seconds_of(reply: Reply) -> float | None:
    """Return the length of a reply's speech; ``None`` if none was wanted."""
    return reply.audio.seconds if reply.audio or "audio" in reply.outputs else None


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
        async with open_async(config, on_progress=display.stage) as pipe:
            display.clear()
            if trace is not None:
                await pipe.start_profile()
            try:
                reply = await receive(pipe, generation.request(messages), display, [writer] if writer else [])
            finally:
                if writer is not None:
                    writer.close()
                if trace is not None:
                    summary = await pipe.stop_profile(trace)
            for line in [*reply.notices, *_about_speech(seconds_of(reply), out)]:
                display.notice(line)
            if trace is not None:
                display.notice(f"{summary.events} events in {trace}; open it at https://ui.perfetto.dev")
    if as_json:
        others = {name: data for name, data in reply.outputs.items() if name not in ("text", "audio")}
        document = {
            "text": reply.text,
            "audio_seconds": seconds_of(reply),
            "audio_file": str(out) if out else None,
            "finish_reason": reply.finish_reason,
            "usage": getattr(reply.outputs.get("text"), "usage", {}),
            "notices": reply.notices,
        }
        click.echo(json.dumps(document | others, default=str))


def _about_speech(seconds: float | None, out: Path | None) -> list[str]:
    if seconds == 0.0:
        return ["The model said nothing: the reply has no speech" + (f"; {out} is not written." if out else ".")]
    return [f"{seconds:.2f} s of speech in {out}"] if seconds and out is not None and out != STANDARD_OUTPUT else []
