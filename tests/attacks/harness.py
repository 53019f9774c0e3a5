"""A server under attack: it is started with keys, a good tenant asks it all the time, and what the attack cost is measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

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
def served(folder: Path, *options: str) -> Any:
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
class Tenant:
    """A good tenant, which asks one short question after another, and looks at ``/health``.

    Attributes:
        seconds: how long each answer took. failed: what was wrong with others. health: how long each look at ``/health`` took.
    """

    server: Server
    seconds: list[float] = field(factory=list)
    failed: list[str] = field(factory=list)
    health: list[float] = field(factory=list)

    async def ask(self, http: aiohttp.ClientSession) -> None:
        """Ask once."""
        begun = time.monotonic()
        try:
            async with http.post("/v1/chat/completions", json=QUESTION, headers=self.server.headers("bob")) as answer:
                body = await answer.json()
            if answer.status != 200 or body["choices"][0]["message"]["content"] != REPLY:
                self.failed.append(f"{answer.status} {str(body)[:200]}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self.failed.append(repr(error)[:200])
        self.seconds.append(time.monotonic() - begun)

    async def look(self, http: aiohttp.ClientSession) -> None:
        """Look at ``/health`` once."""
        begun = time.monotonic()
        try:
            async with http.get("/health") as answer:
                if answer.status != 200:
                    self.failed.append(f"/health {answer.status}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failed.append(f"/health {error!r}"[:200])
        self.health.append(time.monotonic() - begun)

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Ask and look all the time, until the block ends; what is under way then comes to its end."""
        over = asyncio.Event()

        async def again(once: Callable[[aiohttp.ClientSession], Awaitable[None]], pause: float) -> None:
            async with aiohttp.ClientSession(self.server.url, timeout=PATIENCE) as http:
                while True:
                    await once(http)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(over.wait(), pause)
                    if over.is_set():
                        return

        tasks = [asyncio.create_task(again(self.ask, 0.1)), asyncio.create_task(again(self.look, 0.2))]
        try:
            yield
        finally:
            over.set()
            await asyncio.gather(*tasks)


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


async def attacked(server: Server, idle: float, name: str, attack: Callable[[Server], Awaitable[str]]) -> Outcome:
    """Run one attack beside the good tenant. Bars: 50 ms of CPU time a callback, 3 times the idle memory, all answers of the tenant."""
    tenant = Tenant(server)
    server.measure()
    wrong: list[str] = []
    async with tenant.asking():
        try:
            said = await asyncio.wait_for(attack(server), 300)
        except Exception as error:
            said = f"the attack failed: {error!r}"
            wrong.append(said)
    callback, where = server.longest()
    memory = server.memory("VmHWM") / idle
    if callback > 50:
        wrong.append(f"a callback of {callback:.0f} ms: {where}")
    if memory > 3:
        wrong.append(f"memory {memory:.1f} times idle ({idle:.0f} MB)")
    wrong += sorted(set(tenant.failed))[:3]
    return Outcome(
        name, said, callback, where, memory, len(tenant.seconds), max(tenant.seconds), max(tenant.health), wrong
    )
