"""Measure conversations by voice: many sessions at once, and how late their speech is by the pipeline's and by the server's fault.

    python benchmarks/realtime.py [--quick] [--json FILE] [--sessions 64] [--real-time]

Each session sends sound as a microphone does, without a pause; a turn is 1.2 s of a voice, then silence while the answer is played. Each
piece of speech carries the moment at which the pipeline's last stage made it, so that its way through the server is known to the
microsecond. ``demo``: the demo, as ``omni serve demo`` runs it. ``steady``: our server over pieces that are due at fixed moments and
cost nothing, beside a bare WebSocket that sends the same pieces.

A piece is *in the server* until the write to its socket has returned: a server that stands for 20 ms is seen with 20 ms. Of this, the
time in which the event loop's thread was ready to run and had no core (``run_delay`` of ``schedstat``) is the machine's, because other
processes had the cores; a session is late *by the server* by the rest: what it computes, for this session or for others, and how late it
wakes. Time that the host of a virtual machine has taken is in a row of its own. What comes after that is the kernel's and the client's,
in further rows: all sessions share one client process, which has no more of the machine's cores than the server, and whose pauses of 10 to
60 ms (a full garbage collection, 64 timers at once) would count as the server's.
"""

from __future__ import annotations

import asyncio
import base64
import bisect
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
import websockets
from attrs import define, field, frozen
from realtime_apps import DELTA, read_stamps
from report import Row, alone, compare, json_option, publish, quick_option
from serve_apps import RATE

from omni_serve.bench.timeline import Timeline
from omni_serve.encoders import pcm16

HERE = Path(__file__).parent
VOICE_SECONDS, BEFORE = 1.2, 0.5
LATE = 0.005
"""A session is late if its sound is by more seconds than this: a player's buffer is never smaller."""


@frozen
class Share:
    """The share of the cores that servers and clients get where others want them too; stages get the ordinary one.

    Attributes:
        nice: their niceness. real_time: they come before every process of the ordinary kind, and never wait for one.
    """

    nice: int = 0
    real_time: bool = False

    def give(self, pid: int) -> None:
        """Set it for the threads of a process, and not for its children."""
        for thread in Path(f"/proc/{pid}/task").iterdir():
            if self.real_time:
                os.sched_setscheduler(int(thread.name), os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            elif self.nice:
                os.setpriority(os.PRIO_PROCESS, int(thread.name), self.nice)

    def take(self) -> None:
        """Make this process an ordinary one again: it starts the next servers."""
        for thread in Path("/proc/self/task").iterdir():
            if self.real_time:
                os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))
            elif self.nice:
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)


@contextmanager
def server(name: str, share: Share) -> Iterator[tuple[int, int]]:
    """Run one of ``realtime_apps``; yield its port and its process, which gets its share when its pipeline runs."""
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "realtime_apps.py"), name], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        share.give(process.pid)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def processor_seconds(pid: int) -> tuple[float, float]:
    """Return the time that a process has computed, and that its main thread has waited for a core."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK"), waited


def stolen_seconds() -> float:
    """Return for how long this virtual machine's cores had something to do and its host did not run them."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")


class Microphone:
    """Make the frames that a client sends beforehand: the client must not be what is measured."""

    def __init__(self, frame: float) -> None:
        self.frame = frame
        moments = np.arange(int(VOICE_SECONDS * RATE)) / RATE
        voice = pcm16((0.3 * np.sin(1400 * moments) * (moments % 0.2 < 0.15)).astype(np.float32))
        size = int(frame * RATE) * 2
        self.silence = _append(bytes(size))
        turn = bytes(int(BEFORE * RATE) * 2) + voice
        self.turn = [_append(turn[start : start + size].ljust(size, b"\0")) for start in range(0, len(turn), size)]


def _append(sound: bytes) -> str:
    return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(sound).decode()})


@frozen
class Heard:
    """An answer by five clocks of one time: the pieces as they arrived at the client, left the server, would have left it if its event
    loop had never waited for a core, came to it, were made.
    """

    arrived: Timeline
    written: Timeline
    handled: Timeline
    received: Timeline
    made: Timeline

    @property
    def in_server(self) -> list[float]:
        """Seconds of each piece from the pipeline to the client's socket."""
        return _between(self.received, self.written)

    @property
    def to_client(self) -> list[float]:
        """Seconds of each piece from the pipeline to the client's code."""
        return _between(self.received, self.arrived)

    @property
    def in_runtime(self) -> list[float]:
        """Seconds of each piece from the last stage to the server."""
        return _between(self.made, self.received)

    @property
    def fault(self) -> float:
        """Seconds by which its sound is late, for who plays it as it comes, because of the server itself."""
        return max(0.0, (self.handled.late or 0.0) - (self.received.late or 0.0))

    @property
    def of_machine(self) -> float:
        """Seconds by which it is late because the server had something to do and no core to do it on."""
        return max(0.0, (self.written.late or 0.0) - (self.handled.late or 0.0))

    @property
    def heard_late(self) -> float:
        """Seconds by which its sound is late in the client's code, because of the server, the kernel and the client."""
        return max(0.0, (self.arrived.late or 0.0) - (self.received.late or 0.0))


def _between(first: Timeline, second: Timeline) -> list[float]:
    return [after - before for (before, _), (after, _) in zip(first.sounds, second.sounds, strict=True)]


@define
class Turn:
    """One turn: when the voice ended, and what has come since. ``sounds``: arrivals and the events, read afterwards."""

    spoken: float
    stopped: float = 0.0
    done: bool = False
    sounds: list[tuple[float, str]] = field(factory=list)

    def read(self, written: list[float], waited: Callable[[float], float]) -> Heard:
        """Return the speech as it was heard, as it left the server, as it came to it, and as it was made.

        Args:
            written: when the event loop had written each event of ``sounds`` to the socket.
            waited: returns how long its thread had waited for a core until a moment.
        """
        events: list[tuple[int, float, float]] = []
        data = b""
        for (arrived, text), left in zip(self.sounds, written, strict=True):
            data += base64.b64decode(json.loads(text)["delta"])
            events.append((len(data) // 2, arrived, left))
        heard = Heard(*(Timeline(name, self.spoken) for name in ("arrived", "written", "handled", "received", "made")))
        for piece in read_stamps(data):
            _, arrived, left = next(each for each in events if each[0] > piece.start)
            seconds = piece.count / RATE
            for timeline, moment in (
                (heard.arrived, arrived),
                (heard.written, left),
                (heard.handled, max(piece.received, left - waited(left) + waited(piece.received))),
                (heard.received, piece.received),
                (heard.made, piece.made),
            ):
                timeline.sounds.append((moment, seconds))
        return heard


class Client:
    """One session."""

    def __init__(self, port: int, microphone: Microphone, turns: int, offset: float) -> None:
        self._port, self._microphone, self._count, self._offset = port, microphone, turns, offset
        self.turns: list[Turn] = []
        self.lag = 0.0
        self.port = ""

    async def run(self) -> None:
        """Converse."""
        url = f"ws://127.0.0.1:{self._port}/v1/realtime"
        async with websockets.connect(url, max_size=None, open_timeout=60) as self._socket:
            assert "session.created" in str(await self._socket.recv())
            self.port = str(self._socket.local_address[1])
            listening = asyncio.ensure_future(self._listen())
            try:
                async with asyncio.timeout(300):
                    await self._speak()
            finally:
                listening.cancel()

    async def _speak(self) -> None:
        frame = self._microphone.frame
        due = time.monotonic() + self._offset
        for _ in range(self._count):
            for text in self._microphone.turn:
                due = await self._send(text, due + frame)
            self.turns.append(turn := Turn(due))
            while not (turn.done and time.monotonic() > self._played(turn)):
                due = await self._send(self._microphone.silence, due + frame)

    async def _send(self, text: str, due: float) -> float:
        """Send a frame when its sound has been recorded."""
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        self.lag = max(self.lag, time.monotonic() - due)
        await self._socket.send(text)
        return due

    @staticmethod
    def _played(turn: Turn) -> float:
        """Return the moment until which what has come is played, at most."""
        size = sum(len(text) for _, text in turn.sounds)
        return turn.sounds[0][0] + size * 3 / 4 / 2 / RATE if turn.sounds else 0.0

    async def _listen(self) -> None:
        async for text in self._socket:
            now = time.monotonic()
            assert isinstance(text, str)
            if DELTA in text:
                self.turns[-1].sounds.append((now, text))
            elif "speech_stopped" in text:
                self.turns[-1].stopped = now
            elif '"response.done"' in text:
                if '"completed"' not in text:
                    raise RuntimeError(f"a response failed: {text[:500]}")
                self.turns[-1].done = True
            elif '"error"' in text[:20]:
                raise RuntimeError(f"the server answers {text[:500]}")


@define
class Found:
    """The figures of one run. Times are seconds; those of sessions are sums over their turns."""

    in_server: list[float] = field(factory=list)
    to_client: list[float] = field(factory=list)
    in_runtime: list[float] = field(factory=list)
    faults: list[float] = field(factory=list)
    of_machine: list[float] = field(factory=list)
    heard_late: list[float] = field(factory=list)
    late: list[float] = field(factory=list)
    answers: list[float] = field(factory=list)
    cpu: float = 0.0
    waited: float = 0.0
    turn: float = 0.0
    turn_cpu: float = 0.0
    lag: float = 0.0
    stolen: float = 0.0


async def converse(port: int, pid: int, sessions: int, turns: int, frame: float, seed: int) -> Found:
    """Run all sessions at once."""
    chance, microphone = random.Random(seed), Microphone(frame)
    clients = [Client(port, microphone, turns, chance.random() * 2.0) for _ in range(sessions)]
    begun, before, stolen = time.monotonic(), processor_seconds(pid), stolen_seconds()
    async with asyncio.TaskGroup() as group:
        for each in clients:
            group.create_task(each.run())
    seconds = time.monotonic() - begun
    used, waited = (after - each for after, each in zip(processor_seconds(pid), before, strict=True))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/measured") as answer:
        measured = json.load(answer)
    turn, turn_cpu = measured["turns"]
    moments, waits = zip(*measured["waits"], strict=True)

    def waited_until(moment: float) -> float:
        return float(waits[max(bisect.bisect_right(moments, moment) - 1, 0)])

    lag, stolen = max(each.lag for each in clients), stolen_seconds() - stolen
    found = Found(
        cpu=used / seconds / sessions, waited=waited / seconds, turn=turn, turn_cpu=turn_cpu, lag=lag, stolen=stolen
    )
    for client in clients:
        written = measured["written"][client.port]
        heard = list[Heard]()
        for each in client.turns:
            heard.append(each.read(written[: len(each.sounds)], waited_until))
            del written[: len(each.sounds)]
        found.faults.append(sum(each.fault for each in heard))
        found.of_machine.append(sum(each.of_machine for each in heard))
        found.heard_late.append(sum(each.heard_late for each in heard))
        found.late.append(sum(each.made.late or 0.0 for each in heard))
        for each in heard:
            found.in_server += each.in_server
            found.to_client += each.to_client
            found.in_runtime += each.in_runtime
            found.answers.append(each.arrived.ttfa or 0.0)
    return found


def rows_of(name: str, runs: list[Found], other: list[Found] | None, other_name: str) -> list[Row]:
    """Return the figures of some runs, beside those of another server."""

    def row(what: str, unit: str, value: Callable[[Found], float], *, both: bool = True) -> Row:
        ours = [value(each) for each in runs]
        if other is None or not both:
            return alone(f"{name}: {what}", unit, ours)
        theirs = [value(each) for each in other]
        return compare(f"{name}: {what}", unit, ours, theirs, other_name, higher_is_better=False)

    ms = 1000.0
    return [
        row("a piece in the server, p50", "ms", lambda run: ms * statistics.median(run.in_server)),
        row("a piece in the server, p99", "ms", lambda run: ms * float(np.percentile(run.in_server, 99))),
        row("a piece in the server, longest", "ms", lambda run: ms * max(run.in_server)),
        row("late by the server, worst session", "ms", lambda run: ms * max(run.faults)),
        row("sessions late by the server", "", lambda run: sum(each > LATE for each in run.faults)),
        row("late for want of a core, worst session", "ms", lambda run: ms * max(run.of_machine)),
        row("sessions late for want of a core", "", lambda run: sum(each > LATE for each in run.of_machine)),
        row("a turn of the server's event loop, longest", "ms", lambda run: ms * run.turn),
        row("CPU in a turn, most", "ms", lambda run: ms * run.turn_cpu),
        row("a piece until the client has read it, p99", "ms", lambda run: ms * float(np.percentile(run.to_client, 99))),
        row("sessions late as the client reads them", "", lambda run: sum(each > LATE for each in run.heard_late)),
        row("the server waits for a core", "% of the time", lambda run: 100 * run.waited),
        row("the server's CPU for a session", "% of a core", lambda run: 100 * run.cpu),
        row("a piece between the stage and the server, p99", "ms",
            lambda run: ms * float(np.percentile(run.in_runtime, 99)), both=False),
        row("late by the pipeline, median session", "ms", lambda run: ms * statistics.median(run.late), both=False),
        row("end of speech to first sound, p50", "ms", lambda run: ms * statistics.median(run.answers), both=False),
        row("the host had the machine's cores", "ms", lambda run: ms * run.stolen),
        row("the client sends late by, at most", "ms", lambda run: ms * run.lag, both=False),
    ]  # fmt: skip


@click.command()
@quick_option
@json_option
@click.option("--sessions", default=64, show_default=True, type=click.IntRange(1), help="At once.")
@click.option("--frame-ms", default=100, show_default=True, type=click.IntRange(10, 500), help="Of a client's events.")
@click.option(
    "--nice",
    default=0,
    type=click.IntRange(-20, 19),
    help="Of the servers and the clients, not of the stages: below 0 (root) where other work keeps the machine busy.",
)
@click.option(
    "--real-time", is_flag=True, help="Run servers and clients, not the stages, before all other processes (root)."
)
@click.option("--only", type=click.Choice(["demo", "steady"]), help="One of the two.")
@click.option(
    "--processes", type=click.Choice(["separate", "one"]), default="separate", show_default=True, help="Of the demo."
)
def main(
    quick: bool, json_path: Path | None, only: str | None, processes: str, nice: int, real_time: bool, **load: int
) -> None:
    """Measure, and print the table."""
    share = Share(nice, real_time)
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    rounds, turns = (1, 1) if quick else (3, 2)
    sessions, frame, rows = load["sessions"], load["frame_ms"] / 1000, list[Row]()

    def run(at: tuple[int, int], seed: int, sessions: int = sessions) -> Found:
        share.give(os.getpid())
        gc.collect()
        gc.disable()  # a full collection of the client's takes 20 ms, in which it reads nothing
        try:
            return asyncio.run(converse(*at, sessions, turns, frame, seed))
        finally:
            gc.enable()
            share.take()

    if only != "demo":
        with server("steady", share) as steady, server("bare", share) as bare:
            pairs = list[tuple[Found, Found]]()
            for seed in range(rounds):  # in turn: neither is always measured by the fresher client
                found = {at: run(at, seed) for at in ((steady, bare), (bare, steady))[seed % 2]}
                pairs.append((found[steady], found[bare]))
        name = f"steady, {sessions}"
        rows += rows_of(name, [ours for ours, _ in pairs], [each for _, each in pairs], "bare WebSocket")
    if only != "steady":
        with server(f"demo-{processes}", share) as at:
            run(at, 0, 2)
            rows += rows_of(f"demo, {sessions}", [run(at, seed) for seed in range(rounds)], None, "")
    publish(rows, json_path)


if __name__ == "__main__":
    main()
