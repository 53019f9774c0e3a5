"""The servers of ``realtime.py``, each a process of its own: the demo, ours over a pipeline that costs nothing, a bare WebSocket.

python realtime_apps.py NAME     # prints the port

All of them stamp their pieces of speech: the first samples say when the piece was made and how long it is. 16-bit PCM at 24 kHz passes
through the server unchanged, so a client reads the stamps. ``GET /measured`` says when each event with speech was written to its socket.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen
from serve_apps import RATE, serve
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from omni_cli.deploy.source import LayeredSource
from omni_core import open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.coordinator import StreamEvent
from omni_core.interface import SPEECH, TEXT, Interface
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioChunk, AudioResult, TextChunk, TextResult
from omni_serve import Settings, create_app
from omni_serve.encoders import pcm16
from omni_serve.settings import RealtimeLimits

MAGIC = (12_345, -12_345, 23_456)
BITS, TIME_DIGITS, COUNT_DIGITS = 15, 4, 2
STAMP = len(MAGIC) + 2 * TIME_DIGITS + COUNT_DIGITS
"""Samples of a stamp: numbers that mark it, when the piece was made, when the server got it, how long it is."""

LEAST_WAIT = 0.00005
"""Seconds that a thread must have waited for a core since it was last noted."""

DELTA = '"response.output_audio.delta"'

STEADY_SECONDS, STEADY_PIECE = 4.0, 0.08
"""The speech of an answer that costs nothing, and of one of its pieces, which are due at the pace at which they are played."""


@frozen
class Piece:
    """A piece of speech by its stamp: from which sample, how many, and the moments at which it was made and came to the server."""

    start: int
    count: int
    made: float
    received: float


def stamped(samples: npt.NDArray[np.float32], made: float) -> npt.NDArray[np.float32]:
    """Return a piece with its stamp. ``made``: of ``time.monotonic``, which all processes of a host share."""
    if len(samples) < STAMP:
        raise ValueError(f"a piece of {len(samples)} samples has no room for a stamp")
    times = _digits(int(made * 1e6), TIME_DIGITS)
    numbers = [*MAGIC, *times, *times, *_digits(len(samples), COUNT_DIGITS)]
    return np.concatenate([np.array(numbers, np.float32) / 32767, samples[STAMP:]])


def received(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return a stamped piece that has come to the server now."""
    samples, first = samples.copy(), len(MAGIC) + TIME_DIGITS
    samples[first : first + TIME_DIGITS] = np.array(_digits(int(time.monotonic() * 1e6), TIME_DIGITS)) / 32767
    return samples


def read_stamps(pcm: bytes) -> list[Piece]:
    """Return the pieces of a speech."""
    samples, start = np.frombuffer(pcm, "<i2"), 0
    found: list[Piece] = []
    while start < len(samples):
        stamp = samples[start : start + STAMP].tolist()
        if tuple(stamp[: len(MAGIC)]) != MAGIC:
            raise ValueError(f"there is no stamp at sample {start} of {len(samples)}")
        made, came, count = stamp[3:7], stamp[7:11], stamp[11:]
        found.append(Piece(start, _number(count), _number(made) / 1e6, _number(came) / 1e6))
        start += found[-1].count
    return found


def _digits(value: int, count: int) -> list[int]:
    return [value >> (BITS * place) & ((1 << BITS) - 1) for place in range(count)]


def _number(digits: list[int]) -> int:
    return sum(digit << (BITS * place) for place, digit in enumerate(digits))


def create_code2wav(model_path: str, **arguments: Any) -> Any:
    """The demo's last stage, which stamps each piece when it hands it out."""
    from omni_qwen3.code2wav import create_code2wav as make

    scheduler: Any = make(model_path, **arguments)
    emit = scheduler.emit
    scheduler.emit = lambda name, chunk: emit(name, evolve(chunk, samples=stamped(chunk.samples, time.monotonic())))
    return scheduler


def demo(processes: str) -> PipelineConfig:
    """The pipeline ``demo``, as ``omni serve demo`` resolves it, with the last stage from here."""
    config = LayeredSource("demo", options={"processes": processes}).resolve().config
    stages = [
        evolve(stage, factory="realtime_apps:create_code2wav") if stage.name == "code2wav" else stage
        for stage in config.stages
    ]
    return evolve(config, stages=stages, max_in_flight=256)


def steady_pieces(begun: float) -> list[tuple[float, npt.NDArray[np.float32]]]:
    """Return the pieces of an answer with the moments at which they are due."""
    piece = np.zeros(int(STEADY_PIECE * RATE), np.float32)
    due = [begun + STEADY_PIECE * number for number in range(round(STEADY_SECONDS / STEADY_PIECE))]
    return [(each, stamped(piece, each)) for each in due]


class Measured:
    """Passes everything on, and notes when the event loop has written speech to a connection, and how long its turns take.

    The time is taken when the server's write to the socket has returned: from there on the kernel has the bytes.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._written: dict[str, list[float]] = {}
        self._turns: list[tuple[float, float]] = []
        self._waits: list[tuple[float, float]] = [(0.0, 0.0)]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer."""
        if scope["type"] == "http" and scope["path"] == "/measured":
            await self._answer(send)
        elif scope["type"] != "websocket":
            await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, self._noting(send, str(scope["client"][1])))

    def _noting(self, send: Any, client: str) -> Any:
        async def noting(message: Any) -> None:
            await send(message)
            if DELTA in message.get("text", "")[:200]:
                self._note_wait()
                self._written.setdefault(client, []).append(time.monotonic())

        return noting

    def _note_wait(self) -> None:
        waited = int(os.pread(self._scheduled, 100, 0).split()[1]) / 1e9
        if waited - self._waits[-1][1] > LEAST_WAIT:
            self._waits.append((time.monotonic(), waited))

    async def _answer(self, send: Any) -> None:
        """Say what was measured since the last time: moments by the client's port; the most seconds, and of CPU, in a turn; and the
        moments at which the loop's thread had waited longer for a core than before, with how long in all.
        """
        longest = [max((each[index] for each in self._turns), default=0.0) for index in (0, 1)]
        body = json.dumps({"written": self._written, "turns": longest, "waits": self._waits}).encode()
        self._written, self._turns, self._waits = {}, [], self._waits[-1:]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    def watch(self, loop: Any) -> None:
        """Measure the turns of the event loop, from the first speech on: what it does between two waits for events."""
        selector = loop._selector
        select, begin = selector.select, (0.0, 0.0)
        self._scheduled = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

        def watched(timeout: float | None = None) -> Any:
            nonlocal begin
            if self._written:
                self._turns.append((time.monotonic() - begin[0], time.thread_time() - begin[1]))
            self._note_wait()
            found = select(timeout)
            self._note_wait()
            begin = time.monotonic(), time.thread_time()
            return found

        selector.select = watched


class Received:
    """A pipeline whose pieces of speech get their second stamp when they come to the server."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    async def stream(self, request: OmniRequest, request_id: str | None = None) -> AsyncIterator[StreamEvent]:
        async with aclosing(self._pipe.stream(request, request_id)) as events:
            async for event in events:
                if isinstance(event.data, AudioChunk):
                    yield evolve(event, data=evolve(event.data, samples=received(event.data.samples)))
                else:
                    yield event


class Steady:
    """A pipeline without processes, whose pieces are due at fixed moments: what they are late is the server's time."""

    config = PipelineConfig(
        model_path="none",
        name="steady",
        stages=[StageConfig(name="speak", process="p", factory="serve_apps:speak", terminal=True)],
        interface=Interface(
            roles={TEXT: "speak", SPEECH: "speak"},
            inputs=["text", "audio"],
            outputs=["text", "audio"],
            sample_rate=RATE,
        ),
    )

    async def stream(self, request: OmniRequest, request_id: str | None = None) -> AsyncIterator[StreamEvent]:
        yield StreamEvent("speak", TextChunk("A steady answer."), False)
        for due, piece in steady_pieces(time.monotonic()):
            await asyncio.sleep(due - time.monotonic())
            yield StreamEvent("speak", AudioChunk(piece, RATE), False)
        yield StreamEvent("speak", TextResult("A steady answer.", [], "stop", {}), True)
        yield StreamEvent("speak", AudioResult(np.zeros(0, np.float32), RATE), True)

    def health(self) -> dict[str, dict[str, Any]]:
        return {"p": {"stages": ["speak"], "state": "ready", "restarts": 0, "reason": ""}}


def bare() -> Starlette:
    """A WebSocket that answers in the same events and does nothing else: it reads no sound and finds no turn."""

    async def realtime(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_json({"type": "session.created"})
        heard = 0

        async def listen() -> None:
            nonlocal heard
            while True:
                event = json.loads(await socket.receive_text())
                heard += len(event["audio"])

        async def speak() -> None:
            while True:
                before = heard
                while heard - before < 2.2 * RATE * 2 * 4 / 3:
                    await asyncio.sleep(0.01)
                await socket.send_json({"type": "input_audio_buffer.speech_stopped"})
                for due, piece in steady_pieces(time.monotonic()):
                    await asyncio.sleep(due - time.monotonic())
                    delta = base64.b64encode(pcm16(piece)).decode()
                    await socket.send_text(json.dumps({"type": "response.output_audio.delta", "delta": delta}))
                await socket.send_json({"type": "response.done", "response": {"status": "completed"}})

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(listen())
                group.create_task(speak())
        except* (WebSocketDisconnect, RuntimeError):
            pass

    return Starlette(routes=[WebSocketRoute("/v1/realtime", realtime)])


async def main(name: str) -> None:
    settings = Settings(
        concurrent=256, warm_up=name != "steady", realtime=RealtimeLimits(sessions=1024, sessions_per_key=1024)
    )

    async def measure(app: Any) -> None:
        measured = Measured(app)
        measured.watch(asyncio.get_running_loop())
        await serve(measured)

    if name == "bare":
        await measure(bare())
    elif name == "steady":
        await measure(create_app(Steady(), settings))  # type: ignore[arg-type]
    else:
        async with open_async(demo(name.removeprefix("demo-"))) as pipe:
            await measure(create_app(Received(pipe), settings))  # type: ignore[arg-type]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
