"""A server under attack: it is started with keys, a good tenant asks it all the time, and what the attack cost is measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
from attrs import define, field

REPLY = "Hello, nice to meet you."
QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "Say hello."}]}
PATIENCE = aiohttp.ClientTimeout(total=60)


@define
class Server:
    """A served demo with the keys ``alice`` (the attacker's), ``bob`` and ``mon`` (metrics).

    Attributes:
        port: of 127.0.0.1. keys: the secrets by name. folder: for its files.
    """

    process: subprocess.Popen[str]
    port: int
    keys: dict[str, str]
    folder: Path

    @property
    def url(self) -> str:
        """The address at which it listens."""
        return f"http://127.0.0.1:{self.port}"

    def headers(self, name: str = "alice") -> dict[str, str]:
        """Return the headers that carry a key."""
        return {"authorization": f"Bearer {self.keys[name]}"}

    def memory(self, what: str = "VmRSS") -> float:
        """Return the memory of the server's process in MB: now, or the highest (``VmHWM``) since :meth:`measure`."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"{what}:\s+(\d+) kB", text)[0]) / 1024

    def measure(self) -> None:
        """Begin a measurement."""
        self.longest()
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def longest(self) -> tuple[float, str]:
        """Return the longest callback of the event loop since :meth:`measure`, in ms of CPU time, and which it was."""
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + 60
        while not report.exists():  # a signal has no answer to wait for
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(f"the server (pid {self.process.pid}) does not answer: {self.process.poll()}")
            time.sleep(0.02)
        found = json.loads(report.read_text())
        return found["ms"], found["callback"]


@contextlib.contextmanager
def served(folder: Path, *options: str) -> Iterator[Server]:
    """Serve the demo until the block ends."""
    keys = {}
    for name, scopes in {"alice": ("inference", "voices"), "bob": ("inference",), "mon": ("metrics",)}.items():
        command = [sys.executable, "-m", "omni_core.cli", "keys", "add", name, "--file", str(folder / "keys.json")]
        command += [part for scope in scopes for part in ("--scope", scope)]
        keys[name] = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    log = folder / "server.log"
    command = [sys.executable, str(Path(__file__).parent / "timed_server.py"), str(folder / "report.json")]
    command += ["serve", "demo", "--port", "0", "--keys", str(folder / "keys.json"), "--voices", str(folder / "voices")]
    with log.open("w") as file:
        process = subprocess.Popen([*command, *options], stdout=file, stderr=file, text=True)
    try:
        end = time.monotonic() + 120
        while not (port := re.findall(r"Serving \S+ at http://127\.0\.0\.1:(\d+)", log.read_text())):
            if time.monotonic() > end or process.poll() is not None:
                raise RuntimeError(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield Server(process, int(port[0]), keys, folder)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@define
class Asked:
    """The answers that a good tenant got, which asks one short question after another and looks at ``/health``.

    Attributes:
        seconds: how long each answer took. failed: what was wrong with others. health: how long each look at ``/health`` took.
    """

    seconds: list[float] = field(factory=list)
    failed: list[str] = field(factory=list)
    health: list[float] = field(factory=list)


@contextlib.contextmanager
def tenant(server: Server) -> Iterator[Asked]:
    """Let the tenant ask until the block ends, in a process of its own: an attack must not slow it where it runs."""
    asked = Asked()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_ask_all_the_time, args=(theirs, server.url, server.headers("bob")), daemon=True)
    process.start()
    ours.recv()  # the first answer is there
    try:
        yield asked
    finally:
        ours.send(None)
        asked.seconds, asked.failed, asked.health = ours.recv()
        process.join()


def _ask_all_the_time(connection: Connection, url: str, headers: dict[str, str]) -> None:
    seconds: list[float] = []
    failed: list[str] = []
    health: list[float] = []

    async def ask(http: aiohttp.ClientSession) -> None:
        begun = time.monotonic()
        try:
            async with http.post("/v1/chat/completions", json=QUESTION, headers=headers) as answer:
                body = await answer.json()
            if answer.status != 200 or body["choices"][0]["message"]["content"] != REPLY:
                failed.append(f"{answer.status} {str(body)[:200]}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            failed.append(repr(error)[:200])
        seconds.append(time.monotonic() - begun)

    async def look(http: aiohttp.ClientSession) -> None:
        begun = time.monotonic()
        try:
            async with http.get("/health") as answer:
                if answer.status != 200:
                    failed.append(f"/health {answer.status}")
        except (aiohttp.ClientError, TimeoutError) as error:
            failed.append(f"/health {error!r}"[:200])
        health.append(time.monotonic() - begun)

    async def run() -> None:
        over = asyncio.Event()

        async def again(once: Callable[[aiohttp.ClientSession], Awaitable[None]], pause: float) -> None:
            async with aiohttp.ClientSession(url, timeout=PATIENCE) as http:
                while not over.is_set():
                    await once(http)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(over.wait(), pause)

        async with aiohttp.ClientSession(url, timeout=PATIENCE) as http:
            await ask(http)
        connection.send(None)
        tasks = [asyncio.create_task(again(ask, 0.1)), asyncio.create_task(again(look, 0.2))]
        await asyncio.to_thread(connection.recv)
        over.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    connection.send((seconds, failed, health))


@define
class Outcome:
    """The effect of an attack.

    Attributes:
        attack: its name. said: what the server answered, in short. callback: the longest callback, in ms of CPU time. where: which.
        memory: the highest of the server, over idle. asked: answers of the good tenant. slowest: the longest of them, in s.
        health: the longest look at ``/health``, in s. wrong: what was not as it must be.
    """

    attack: str
    said: str
    callback: float
    where: str
    memory: float
    asked: int
    slowest: float
    health: float
    wrong: list[str]


def attacked(server: Server, idle: float, name: str, attack: Callable[[Server], Awaitable[str]]) -> Outcome:
    """Run one attack beside the good tenant. Bars: 50 ms of CPU time a callback, 3 times the idle memory, all answers of the tenant."""
    server.measure()
    wrong: list[str] = []
    with tenant(server) as asked:
        try:
            said = asyncio.run(asyncio.wait_for(attack(server), 300))
        except Exception as error:
            said = f"the attack failed: {error!r}"
            wrong.append(said)
    callback, where = server.longest()
    memory = server.memory("VmHWM") / idle
    if callback > 50:
        wrong.append(f"a callback of {callback:.0f} ms: {where}")
    if memory > 3:
        wrong.append(f"memory {memory:.1f} times idle ({idle:.0f} MB)")
    wrong += sorted(set(asked.failed))[:3]
    return Outcome(
        name, said, callback, where, memory, len(asked.seconds), max(asked.seconds), max(asked.health), wrong
    )
