"""Measure words that come while a user speaks: how late they are, for many sessions at once, and what an idle session takes.

    python benchmarks/live.py [--quick] [--json FILE] [--sessions 32] [--model FOLDER [--sound WAV]]

Each session of ``/v1/realtime?intent=transcription`` sends sound at the pace at which it is spoken, and ends its turn by hand. *Other* is
the same server where the recogniser hears whole turns: its words come when the turn has ended. Without ``--model`` the recogniser costs
nothing and says a word for each quarter of a second, so that what a word is late is the server's, the runtime's and the client's time; a
model's words have no known times, so its figures are those of the first words, of the end, and of what is known when the user falls silent.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
import websockets
from attrs import define, field
from live_apps import WORD_SECONDS
from report import Row, alone, compare, json_option, publish, quick_option

HERE = Path(__file__).parent
RATE = 24_000
FRAME = 0.05
"""Seconds of sound in an event, as LiveKit sends it."""


@contextmanager
def server(name: str, model: Path | None) -> Iterator[tuple[int, int]]:
    """Run one of ``live_apps``; yield its port and its process."""
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, str(HERE / "live_apps.py"), name, *([str(model)] if model else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process.pid
    finally:
        process.terminate()
        process.wait()


def private_kib(pid: int) -> int:
    """Return the private memory of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    own = sum(int(line.split()[1]) for line in lines if line.startswith("Private"))
    return own + sum(private_kib(int(child)) for child in children)


def frames(sound: Path | None, seconds: float) -> list[str]:
    """Return the events that a session sends."""
    if sound is None:
        moments = np.arange(int(seconds * RATE)) / RATE
        samples = (8000 * np.sin(1400 * moments) * (moments % 0.2 < 0.15)).astype("<i2")
    else:
        with wave.open(str(sound)) as file:
            if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
                raise SystemExit(f"{sound}: must be mono, of 16 bits at {RATE} Hz")
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    step = int(FRAME * RATE)
    pieces = (base64.b64encode(samples[at : at + step].tobytes()).decode() for at in range(0, len(samples), step))
    return [json.dumps({"type": "input_audio_buffer.append", "audio": each}) for each in pieces]


@define
class Turn:
    """One turn. Times are seconds since its first sound was spoken."""

    seconds: float
    words: list[tuple[float, str]] = field(factory=list)
    text: str = ""
    ended: float = 0.0
    lag: float = 0.0

    @property
    def late(self) -> list[float]:
        """Seconds from the end of the sound of each word to its arrival, of the recogniser that costs nothing."""
        said = self.words or [(self.ended, self.text)]
        found: list[float] = []
        for at, text in said:
            for _ in text.split():
                found.append(at - (len(found) + 1) * WORD_SECONDS)
        return found

    @property
    def first(self) -> float:
        """Seconds from the first sound to the first words."""
        return self.words[0][0] if self.words else self.ended

    @property
    def known(self) -> float:
        """The part of the text, in per cent, that was there when the user fell silent."""
        before = "".join(text for at, text in self.words if at <= self.seconds)
        return 100 * len(before) / max(len(self.text), 1)


async def open_session(port: int) -> websockets.ClientConnection:
    """Return a session that transcribes, whose turns end by hand."""
    url = f"ws://127.0.0.1:{port}/v1/realtime?intent=transcription"
    socket = await websockets.connect(url, max_size=None, open_timeout=60)
    sound = {"turn_detection": None}
    await socket.send(
        json.dumps({"type": "session.update", "session": {"type": "transcription", "audio": {"input": sound}}})
    )
    while "session.updated" not in str(await socket.recv()):
        pass
    return socket


async def speak(socket: websockets.ClientConnection, events: list[str], offset: float) -> Turn:
    """Speak one turn; the events' sound has been spoken when they are sent."""
    await asyncio.sleep(offset)
    turn, begun = Turn(len(events) * FRAME), time.monotonic()

    async def listen() -> None:
        async for text in socket:
            now, event = time.monotonic() - begun, json.loads(text)
            if event["type"].endswith("transcription.delta") and event["delta"]:
                turn.words.append((now, event["delta"]))
            elif event["type"].endswith("transcription.completed"):
                turn.text, turn.ended = event["transcript"], now
                return
            elif event["type"].endswith(".failed") or event["type"] == "error":
                raise RuntimeError(text)

    listening = asyncio.ensure_future(listen())
    for number, event in enumerate(events, 1):
        wait = begun + number * FRAME - time.monotonic()
        await asyncio.sleep(max(wait, 0.0))
        turn.lag = max(turn.lag, -wait)
        await socket.send(event)
    await socket.send('{"type":"input_audio_buffer.commit"}')
    async with asyncio.timeout(300):
        await listening
    return turn


async def converse(port: int, sessions: int, events: list[str]) -> list[Turn]:
    """Speak in all sessions at once."""
    sockets = [await open_session(port) for _ in range(sessions)]
    gc.disable()  # a collection of the client's would be a word's delay
    try:
        spoken = (speak(socket, events, n * FRAME / sessions) for n, socket in enumerate(sockets))
        return await asyncio.gather(*spoken)
    finally:
        gc.enable()
        await asyncio.gather(*(socket.close() for socket in sockets))


async def idle(port: int, pid: int, sessions: int, event: str) -> tuple[float, float]:
    """Return the KiB that a session takes which has said nothing, and one whose turn has begun. They come on top of each other."""
    sockets = [await open_session(port) for _ in range(4)]
    for socket in sockets:
        await socket.send(event)
    await asyncio.sleep(0.5)
    before = private_kib(pid)
    sockets += (more := [await open_session(port) for _ in range(sessions)])
    await asyncio.sleep(0.5)
    silent = private_kib(pid)
    for socket in more:
        await socket.send(event)
    await asyncio.sleep(1.0)
    spoken = private_kib(pid)
    await asyncio.gather(*(socket.close() for socket in sockets))
    return (silent - before) / sessions, (spoken - before) / sessions


def rows_of(runs: dict[str, list[list[Turn]]], is_model: bool) -> list[Row]:
    """Return the figures of the turns."""
    other_name = "whole turns"

    def row(what: str, unit: str, value: object, *, higher: bool = False) -> Row:
        assert callable(value)
        ours, other = ([float(value(run)) for run in runs[name]] for name in ("live", "whole"))
        return compare(what, unit, ours, other, other_name, higher_is_better=higher)

    def late(run: list[Turn]) -> list[float]:
        return [each for turn in run for each in turn.late]

    ms, rows = 1000.0, list[Row]()
    if not is_model:
        rows = [
            row("a word after its sound, p50", "ms", lambda run: ms * np.percentile(late(run), 50)),
            row("a word after its sound, p99", "ms", lambda run: ms * np.percentile(late(run), 99)),
            row("a word after its sound, longest", "ms", lambda run: ms * max(late(run))),
        ]
    return [
        *rows,
        row("first words after the first sound, p50", "ms", lambda run: ms * np.median([turn.first for turn in run])),
        row("the whole text after the last sound, p50", "ms",
            lambda run: ms * np.median([turn.ended - turn.seconds for turn in run])),
        row("the whole text after the last sound, longest", "ms",
            lambda run: ms * max(turn.ended - turn.seconds for turn in run)),
        row("known when the user falls silent", "% of the text", lambda run: np.mean([turn.known for turn in run]),
            higher=True),
        row("the client sends late by, at most", "ms", lambda run: ms * max(turn.lag for turn in run)),
    ]  # fmt: skip


@click.command()
@quick_option
@json_option
@click.option("--sessions", default=32, show_default=True, type=click.IntRange(1), help="At once.")
@click.option("--seconds", default=4.0, show_default=True, type=click.FloatRange(0.5, 60), help="Of a turn.")
@click.option("--model", type=click.Path(exists=True, path_type=Path), help="A checkpoint that listens to streams.")
@click.option("--sound", type=click.Path(exists=True, path_type=Path), help="What is said: mono, 16 bits, 24 kHz.")
def main(
    quick: bool, json_path: Path | None, sessions: int, seconds: float, model: Path | None, sound: Path | None
) -> None:
    """Measure, and print the table."""
    events = frames(sound, seconds)
    runs: dict[str, list[list[Turn]]] = {"live": [], "whole": []}
    many = 200 if model is None else sessions
    with server("live", model) as live, server("whole", model) as whole:
        for port, _ in (live, whole):  # the first turn loads and compiles
            asyncio.run(converse(port, 1, events[:20]))
        for _ in range(2 if quick else 5):
            for name, (port, _) in (("live", live), ("whole", whole)):
                runs[name].append(asyncio.run(converse(port, sessions, events)))
        silent, spoken = asyncio.run(idle(*live, many, events[0]))
    texts = {turn.text for name in runs for run in runs[name] for turn in run}
    if len(texts) != 1:
        click.echo(f"{len(texts)} different texts were heard in the same sound")
    rows = rows_of(runs, model is not None)
    rows.append(alone("private memory of an idle session", "KiB", [silent]))
    rows.append(alone("private memory of a session with an open turn", "KiB", [spoken]))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
