"""The session of ``omni run``: one reply with its files and JSON, or a chat with history."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import click
from attrs import define, field

from omni_core.cli.display import Display
from omni_core.cli.generation import Generation
from omni_core.client import Client, open_pipeline
from omni_core.client.wav import WavWriter
from omni_core.config.schema import PipelineConfig
from omni_core.errors import OmniError
from omni_core.protocol.outputs import AudioChunk, AudioResult, TextChunk, TextResult

_HELP = "/image PATH, /audio PATH, /video PATH: add to the next message. /reset: forget the chat. /quit: leave."
_MEDIA = ("image", "audio", "video")


@define
class Reply:
    """A reply as it was shown."""

    text: str = ""
    audio_seconds: float | None = None
    details: dict[str, Any] = field(factory=dict)


async def receive(
    client: Client, generation: Generation, messages: list[dict[str, Any]], display: Display, out: Path | None
) -> Reply:
    """Send one request and show its reply as it comes; speech goes to ``out`` if given."""
    reply, streamed_text = Reply(), False
    writer = WavWriter(out) if out is not None else None
    try:
        async for event in client.stream(generation.request(messages)):
            data = event.data
            if isinstance(data, TextChunk):
                streamed_text = True
                display.text(data.text)
            elif isinstance(data, AudioChunk):
                reply.audio_seconds = (reply.audio_seconds or 0.0) + len(data.samples) / data.sample_rate
                display.audio(reply.audio_seconds)
                if writer is not None:
                    writer.write(data.samples, data.sample_rate)
            elif isinstance(data, TextResult):
                reply.text = data.text
                if not streamed_text:  # a pipeline need not stream
                    display.text(data.text)
                reply.details |= {"finish_reason": data.finish_reason, "usage": data.usage, "notices": data.notices}
            elif isinstance(data, AudioResult):
                if reply.audio_seconds is None and writer is not None and len(data.samples):
                    writer.write(data.samples, data.sample_rate)
                reply.audio_seconds = len(data.samples) / data.sample_rate
            elif event.final:
                reply.details[event.stage] = data
                display.text(f"{data}\n")
    finally:
        if writer is not None:
            writer.close()
    for notice in reply.details.get("notices", []):
        display.notice(notice)
    if reply.audio_seconds == 0.0:
        display.notice("The model said nothing: the reply has no speech" + (f"; {out} is not written." if out else "."))
    elif reply.audio_seconds and out is not None:
        display.notice(f"{reply.audio_seconds:.2f} s of speech in {out}")
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
    """Run the pipeline for one request: ``omni run`` with inputs."""
    with Display(quiet=as_json) as display:
        for notice in notices:
            display.notice(notice)
        async with open_pipeline(config, on_progress=display.stage) as client:
            display.clear()
            if trace is not None:
                await client.start_profile()
            try:
                reply = await receive(client, generation, messages, display, out)
            finally:
                if trace is not None:
                    summary = await client.stop_profile(trace)
            display.end_line()
            if trace is not None:
                display.notice(f"{summary.events} events in {trace}; open it at https://ui.perfetto.dev")
    if as_json:
        file = str(out) if out else None
        document = {"text": reply.text, "audio_seconds": reply.audio_seconds, "audio_file": file, **reply.details}
        click.echo(json.dumps(document, default=str))


async def chat(
    config: PipelineConfig, notices: list[str], generation: Generation, messages: list[dict[str, Any]], out: Path | None
) -> None:
    """Chat: turns from the terminal until /quit or the end of input, ``omni run`` without inputs."""
    opening = list(messages)
    with Display() as display:
        for notice in notices:
            display.notice(notice)
        async with open_pipeline(config, on_progress=display.stage) as client:
            display.clear()
            display.notice(_HELP)
            attached: list[dict[str, Any]] = []
            while (line := await _read_line()) is not None:
                word, _, rest = line.strip().partition(" ")
                if word in ("/quit", "/exit"):
                    break
                if word == "/reset":
                    messages, attached = list(opening), []
                elif word.startswith("/") and word[1:] in _MEDIA:
                    _attach(attached, word[1:], rest.strip(), display)
                elif word.startswith("/"):
                    display.notice(_HELP)
                elif word:
                    turn = {"role": "user", "content": [*attached, {"type": "text", "text": line.strip()}]}
                    answer = await _turn(client, generation, [*messages, turn], display, out)
                    if answer is not None:
                        messages, attached = [*messages, turn, {"role": "assistant", "content": answer}], []


def _attach(attached: list[dict[str, Any]], kind: str, path: str, display: Display) -> None:
    if not Path(path).expanduser().is_file():
        display.notice(f"No such file: {path}")
        return
    attached.append({"type": kind, "path": str(Path(path).expanduser().absolute())})
    display.notice(f"added {kind} {path}; now write your message")


async def _turn(
    client: Client, generation: Generation, messages: list[dict[str, Any]], display: Display, out: Path | None
) -> str | None:
    """Receive one reply and return its text; ``None`` if it failed or was interrupted. Ctrl-C ends the reply, not the chat."""
    task = asyncio.ensure_future(receive(client, generation, messages, display, out))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        reply = await task
    except asyncio.CancelledError:
        display.notice("(reply ended)")
        return None
    except OmniError as error:
        display.notice(f"Error: {error}")
        return None
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        display.end_line()
    return reply.text or "..."


async def _read_line() -> str | None:
    """Read a line of input beside the event loop; ``None`` at its end."""
    try:
        return await asyncio.to_thread(input, "> ")
    except EOFError:
        return None
