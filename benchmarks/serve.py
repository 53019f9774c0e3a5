"""What HTTP costs: requests a second beside a bare FastAPI echo, and the first byte of speech beside the pipeline's first piece.

    python benchmarks/serve.py [--quick] [--json FILE]

Every server is a process of its own, and runs in rounds that are interleaved. ``http``: our server over a pipeline that is a
function call, so that the figure is HTTP's alone. ``noop``: over a pipeline whose stage, in a process of its own, does nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from report import Row, alone, compare, json_option, publish, quick_option
from serve_apps import SPEAKS, WRITES, pipeline

from omni_core import open_async
from omni_core.protocol.messages import OmniRequest

HERE = Path(__file__).parent
MESSAGES = [{"role": "user", "content": "Hello, how are you today?"}]
CHAT = json.dumps({"model": "noop", "messages": MESSAGES}).encode()
SPEECH = json.dumps({"model": "noop", "input": "Hello.", "response_format": "pcm"}).encode()


@contextmanager
def server(name: str) -> Iterator[int]:
    """Run one of ``serve_apps``; yield its port."""
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "serve_apps.py"), name], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


class Connection:
    """A client as lean as can be, so that the server is what is measured."""

    def __init__(self, port: int, path: str, body: bytes) -> None:
        self._port = port
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer a key for the benchmark\r\n"
        self._request = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def ask(self) -> None:
        """Send the request and read an answer with a known length."""
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self._reader.readexactly(int(length.split(b":")[1]))

    async def first_sound(self) -> float:
        """Send the request; return the seconds until the first bytes of the body, and read the rest."""
        begin = time.perf_counter()
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        first = 0.0
        while size := int(await self._reader.readline(), 16):
            first = first or time.perf_counter() - begin
            await self._reader.readexactly(size + 2)
        await self._reader.readexactly(2)
        return first

    def close(self) -> None:
        self._writer.close()


async def rate(port: int, concurrency: int, seconds: float) -> float:
    """Return requests a second of a closed loop."""
    connections = [Connection(port, "/v1/chat/completions", CHAT) for _ in range(concurrency)]
    for each in connections:
        await each.open()
        await each.ask()
    count, until = 0, time.perf_counter() + seconds

    async def ask(connection: Connection) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await connection.ask()
            count += 1

    begin = time.perf_counter()
    await asyncio.gather(*(ask(each) for each in connections))
    taken = time.perf_counter() - begin
    for each in connections:
        each.close()
    return count / taken


async def pipeline_rate(concurrency: int, seconds: float) -> float:
    """Return requests a second of the no-op pipeline without HTTP."""
    async with open_async(pipeline("write", WRITES)) as pipe:
        request = OmniRequest({"messages": MESSAGES})
        count, until = 0, time.perf_counter() + seconds

        async def ask() -> None:
            nonlocal count
            while time.perf_counter() < until:
                async for _ in pipe.stream(request):
                    pass
                count += 1

        begin = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(concurrency)))
        return count / (time.perf_counter() - begin)


async def first_sounds(port: int, count: int) -> tuple[float, float]:
    """Return the median seconds until the first sound: over HTTP, and of the pipeline alone."""
    connection = Connection(port, "/v1/audio/speech", SPEECH)
    await connection.open()
    await connection.first_sound()
    over_http = [await connection.first_sound() for _ in range(count)]
    connection.close()
    direct = []
    async with open_async(pipeline("speak", SPEAKS)) as pipe:
        for _ in range(count + 1):
            begin, first = time.perf_counter(), 0.0
            async for _ in pipe.stream(OmniRequest({"messages": MESSAGES})):
                first = first or time.perf_counter() - begin
            direct.append(first)
    return statistics.median(over_http), statistics.median(direct[1:])


@click.command()
@quick_option
@json_option
def main(quick: bool, json_path: Path | None) -> None:
    """Measure, and print the table."""
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    rounds, seconds = (3, 1.0) if quick else (7, 3.0)
    rows: list[Row] = []
    with server("echo") as echo, server("http") as http, server("noop") as noop, server("speech") as speech:
        for concurrency in (1, 64):
            rates: dict[str, list[float]] = {"echo": [], "http": [], "noop": [], "pipeline": []}
            for _ in range(rounds):
                for name, port in (("echo", echo), ("http", http), ("noop", noop)):
                    rates[name].append(asyncio.run(rate(port, concurrency, seconds)))
                rates["pipeline"].append(asyncio.run(pipeline_rate(concurrency, seconds)))
            at = f"chat, concurrency {concurrency}"
            rows.append(
                compare(f"{at}: HTTP alone", "1/s", rates["http"], rates["echo"], "FastAPI echo", higher_is_better=True)
            )
            rows.append(
                compare(
                    f"{at}: over no-ops", "1/s", rates["noop"], rates["echo"], "FastAPI echo", higher_is_better=True
                )
            )
            rows.append(
                compare(
                    f"{at}: over no-ops", "1/s", rates["noop"], rates["pipeline"], "without HTTP", higher_is_better=True
                )
            )
        sounds = [asyncio.run(first_sounds(speech, 20 if quick else 100)) for _ in range(rounds)]
    rows.append(
        alone("first sound over HTTP, after the pipeline's", "ms", [1000 * (over - direct) for over, direct in sounds])
    )
    publish(rows, json_path)


if __name__ == "__main__":
    main()
