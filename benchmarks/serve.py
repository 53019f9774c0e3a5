"""Measure the cost of HTTP: requests a second beside a bare FastAPI echo, and the first byte of speech beside the pipeline's first piece.

    python benchmarks/serve.py [--quick] [--json FILE]

Every server is a process of its own, and runs in rounds that are interleaved. ``http``: our server over a pipeline that is a
function call, so that the figure is HTTP's alone. ``noop``: over a pipeline whose stage, in a process of its own, does nothing.
``chain``: over three such processes, as the peer had. ``together``: over three such stages in one process, as omni runs stages that
need none of their own. *added by HTTP* is the time of a request over a no-op less that of the pipeline without HTTP, beside the echo's.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from report import Row, alone, compare, json_option, publish, quick_option
from serve_apps import SPEAKS, WRITES, pipeline

from omni_core import open_async
from omni_core.protocol.messages import OmniRequest

HERE = Path(__file__).parent
MESSAGES = [{"role": "user", "content": "Hello, how are you today?"}]
CHAT = json.dumps({"model": "noop", "messages": MESSAGES}).encode()
PEER = {1: 264.0, 64: 326.0}
"""Requests a second of sglang-omni 0.1.9's HTTP server over three processes without work, by concurrency, measured on two such cores."""

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


def request_of(path: str, body: bytes) -> bytes:
    """Return a request as it is sent."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer a key for the benchmark\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Client(asyncio.Protocol):
    """Asks again as soon as it has an answer, in the callback that reads it: as lean as can be, so that the server is what is measured."""

    _request = request_of("/v1/chat/completions", CHAT)
    _length = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

    def __init__(self) -> None:
        self.count, self._until, self._data = 0, 0.0, b""
        self._over = asyncio.get_running_loop().create_future()

    async def ask(self, until: float) -> None:
        """Ask at least once, and until then."""
        self.count, self._until, self._over = 0, until, asyncio.get_running_loop().create_future()
        self.transport.write(self._request)
        await self._over

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Read an answer with a known length."""
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        length = self._length.search(self._data, 0, end)
        if not self._data.startswith(b"HTTP/1.1 200") or length is None:
            self.transport.abort()
        elif len(self._data) >= end + 4 + int(length[1]):
            self._data, self.count = b"", self.count + 1
            if time.perf_counter() < self._until:
                self.transport.write(self._request)
            else:
                self._over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._over.done():
            self._over.set_exception(
                RuntimeError(f"the server has answered {self._data!r:.500} and ended the connection")
            )


async def first_sound(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    """Ask for speech; return the seconds until the first bytes of the body, and read the rest."""
    begin = time.perf_counter()
    writer.write(request_of("/v1/audio/speech", SPEECH))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    first = 0.0
    while size := int(await reader.readline(), 16):
        first = first or time.perf_counter() - begin
        await reader.readexactly(size + 2)
    await reader.readexactly(2)
    return first


async def rate(port: int, concurrency: int, seconds: float) -> float:
    """Return requests a second of a closed loop."""
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(Client, "127.0.0.1", port))[1] for _ in range(concurrency)]
    await asyncio.gather(*(each.ask(0.0) for each in clients))
    begin = time.perf_counter()
    await asyncio.gather(*(each.ask(begin + seconds) for each in clients))
    taken = time.perf_counter() - begin
    for each in clients:
        each.transport.close()
    return sum(each.count for each in clients) / taken


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
    connection = await asyncio.open_connection("127.0.0.1", port)
    await first_sound(*connection)
    over_http = [await first_sound(*connection) for _ in range(count)]
    connection[1].close()
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
    rounds, seconds = (3, 0.4) if quick else (7, 3.0)
    rows: list[Row] = []
    with (
        server("echo") as echo,
        server("http") as http,
        server("noop") as noop,
        server("chain") as chain,
        server("together") as together,
        server("speech") as speech,
    ):
        for concurrency in (1, 64):
            ports = {"echo": echo, "http": http, "noop": noop, "chain": chain, "together": together}
            rates: dict[str, list[float]] = {name: [] for name in [*ports, "pipeline"]}
            for _ in range(rounds):
                for name, port in ports.items():
                    rates[name].append(asyncio.run(rate(port, concurrency, seconds)))
                rates["pipeline"].append(asyncio.run(pipeline_rate(concurrency, seconds)))
            rates["peer"] = [PEER[concurrency]] * rounds
            for what, ours, other, named in (
                ("HTTP alone", "http", "echo", "FastAPI echo"),
                ("over a no-op", "noop", "echo", "FastAPI echo"),
                ("over a no-op", "noop", "pipeline", "without HTTP"),
                ("over a no-op", "noop", "peer", "sglang-omni 0.1.9"),
                ("over three in one process", "together", "peer", "sglang-omni 0.1.9"),
                ("over three no-ops", "chain", "peer", "sglang-omni 0.1.9"),
            ):
                name = f"chat, concurrency {concurrency}: {what}"
                rows.append(compare(name, "1/s", rates[ours], rates[other], named, higher_is_better=True))
            added = [
                1000 / noops - 1000 / without for noops, without in zip(rates["noop"], rates["pipeline"], strict=True)
            ]
            echoed = [1000 / each for each in rates["echo"]]
            name = f"chat, concurrency {concurrency}: added by HTTP"
            rows.append(compare(name, "ms", added, echoed, "FastAPI echo", higher_is_better=False))
        sounds = [asyncio.run(first_sounds(speech, 20 if quick else 100)) for _ in range(rounds)]
    rows.append(
        alone("first sound over HTTP, after the pipeline's", "ms", [1000 * (over - direct) for over, direct in sounds])
    )
    publish(rows, json_path)


if __name__ == "__main__":
    main()
