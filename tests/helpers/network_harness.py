"""Two hosts that are two network namespaces, joined by a link whose packets the test delays and drops."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from network_stages import digest, values

from omni_core.client import AsyncPipe
from omni_core.config.schema import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from omni_core.errors import OmniError
from omni_core.hookspecs import works
from omni_core.plugins import load_plugins
from omni_core.protocol.messages import OmniRequest

HERE, THERE = "10.197.32.1", "10.197.32.2"
PYTHON = sys.executable
_CLONE_NEWNET = 0x40000000


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=60)


class Network:
    """The two namespaces and the link between them. The test's process is in the first one: ``HERE``; the other host is ``THERE``."""

    def __init__(self, names: tuple[str, str], program: subprocess.Popen[str], folder: str) -> None:
        self.names = names
        self._program = program
        self.python = Path(folder, "python")
        """An interpreter for processes here: in the namespace, and with its ``/sys``, where UCX looks for interfaces."""
        self.python.write_text(f'#!/bin/sh\nexec ip netns exec {names[0]} {sys.executable} "$@"\n')
        self.python.chmod(0o700)

    @property
    def there(self) -> list[str]:
        """The beginning of a command line that runs on the other host."""
        return ["ip", "netns", "exec", self.names[1]]

    def both(self, **changes: Any) -> None:
        """Change both directions: see :class:`link.Way`."""
        self._say({"forth": changes, "back": changes})

    def forth(self, **changes: Any) -> None:
        """Change the direction from here to there."""
        self._say({"forth": changes})

    def back(self, **changes: Any) -> None:
        """Change the direction from there to here."""
        self._say({"back": changes})

    def forget(self) -> None:
        """Drop every packet of the TCP connections that there are now, as a router does that has lost its state; new ones work."""
        self._say({"forget": True})

    def _say(self, settings: dict[str, Any]) -> None:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps(settings) + "\n")
        self._program.stdin.flush()
        assert self._program.stdout.readline() == "ok\n"


@contextmanager
def make_network() -> Iterator[Network]:
    """Make the namespaces and the link, and put this process into the first namespace. Skips the test where that is not possible."""
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    names = (f"omni-a-{os.getpid()}", f"omni-b-{os.getpid()}")
    devices = (f"ola{os.getpid()}", f"olb{os.getpid()}")
    program = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("link.py")), *devices],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        assert program.stdout is not None
        assert program.stderr is not None
        if program.stdout.readline() != "ready\n":
            pytest.skip(f"a TUN device cannot be made here: {program.stderr.read().strip().splitlines()[-1]}")
        try:
            for name, device, address in zip(names, devices, (HERE, THERE), strict=True):
                ip("netns", "add", name)
                ip("link", "set", device, "netns", name)
                ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
                ip("-n", name, "link", "set", device, "up")
                ip("-n", name, "link", "set", "lo", "up")
            _enter(os.open(f"/run/netns/{names[0]}", os.O_RDONLY))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
        except OSError as error:
            pytest.skip(f"this process cannot enter a network namespace: {error}")
        with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
            yield Network(names, program, folder)
    finally:
        _enter(outside)
        for name in names:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)
        program.communicate("", timeout=60)


def _enter(descriptor: int) -> None:
    """Put this thread, and what it starts, into a network namespace. ``os.setns`` is in Python 3.12."""
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def two_hosts(
    folder: Path, key_file: Path, serving: str | None, relays: tuple[str, str] | None = None, **fields: Any
) -> PipelineConfig:
    """Return a pipeline whose stage ``far`` is on the other host, which serves at an address or else joins.

    Args:
        relays: carry the payloads to the other host and back. ``None``: they are in the messages.
    """
    there, back = relays or network_relays()
    sends = partial(RelayConfig, slot_size_mb=8, inline_bytes=2**30 if relays is None else None)
    stage = partial(StageConfig, relay=sends(backend=there))
    stages = [
        stage(
            name="make",
            factory="network_stages:make",
            process="make",
            next=["near", "far"],
            route_fn="network_stages:route",
        ),
        stage(name="near", factory="network_stages:near", process="near", terminal=True),
        StageConfig(
            name="far",
            factory="network_stages:far",
            process="far",
            next="last",
            host="b",
            relay=sends(backend=back),
        ),
        stage(name="last", factory="network_stages:last", process="last", terminal=True),
    ]
    return PipelineConfig(
        model_path="none",
        stages=stages,
        terminal_stages_fn="network_stages:terminals",
        endpoints=EndpointsConfig(str(folder), HERE, str(key_file), None if serving else f"tcp://{HERE}:7555"),
        hosts={"b": serving} if serving else {},
        **fields,
    )


def network_relays() -> tuple[str, str]:
    """Return the relays that join hosts and can work here: two, if there are two. Skips the test if there is none."""
    found = {each.name: problem for hook, each, _, problem in load_plugins().check() if hook == "omni_relays"}
    able = [name for name in ("nixl", "mooncake") if works(found.get(name, "not installed"))]
    if not able:
        pytest.skip("no relay that joins hosts can work here")
    return able[0], able[-1]


class OtherHost:
    """``omni hosts`` in the other network namespace, and in a namespace of process ids of its own."""

    def __init__(self, outer: asyncio.subprocess.Process) -> None:
        self._outer = outer

    @property
    def processes(self) -> list[psutil.Process]:
        """Every process of that host, its server first."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._outer.pid).children(recursive=True)
        return []

    def freeze(self) -> list[psutil.Process]:
        """Stop every process there; return those that were stopped."""
        stopped = []
        for each in self.processes:
            with suppress(psutil.NoSuchProcess):
                each.suspend()
                stopped.append(each)
        return stopped

    @staticmethod
    def thaw(stopped: list[psutil.Process]) -> None:
        """Let them go on."""
        for each in stopped:
            with suppress(psutil.NoSuchProcess):  # it may have ended, as those of a run that is over do
                each.resume()

    async def close(self) -> None:
        """Interrupt the server and wait until it has ended; end it by force if it does not."""
        if self._outer.returncode is not None:
            return
        try:
            processes = self.processes
            self.thaw(processes)
            for server in processes[:1]:
                server.send_signal(signal.SIGINT)
            await asyncio.wait_for(self._outer.communicate(), 60)
        finally:
            if self._outer.returncode is None:
                self._outer.kill()  # and with it, by --kill-child, every process of its namespace
                await self._outer.communicate()


@asynccontextmanager
async def other_host(network: Network, key_file: Path, *arguments: str) -> AsyncIterator[tuple[str, OtherHost]]:
    """Run ``omni hosts`` on the other host; also returns the address where it listens."""
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    omni = [PYTHON, "-m", "omni_core.cli", "hosts", *arguments, "--key", str(key_file)]
    process = await asyncio.create_subprocess_exec(
        *apart, *network.there, *omni, "--listen", f"tcp://{THERE}:0", stdout=asyncio.subprocess.PIPE
    )
    host = OtherHost(process)
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
    if not line:
        pytest.skip("a namespace of process ids cannot be made here")
    try:
        yield next(word.rstrip(";") for word in line.split() if THERE in word), host
    finally:
        await host.close()


def serving(network: Network, key_file: Path) -> Any:
    """``omni hosts serve`` there."""
    return other_host(network, key_file, "serve")


def joining(network: Network, key_file: Path) -> Any:
    """``omni hosts join`` there."""
    return other_host(network, key_file, "join", f"tcp://{HERE}:7555", "--as", "b")


async def ask(pipe: AsyncPipe, to: str, seed: int = 0, count: int = 1000, seconds: float = 0.0) -> Any:
    """Run one request, check its answer bit by bit, and return it."""
    answer = await pipe.submit(OmniRequest({"to": to, "seed": seed, "count": count, "seconds": seconds}))
    made = values(seed, count)
    (result,) = answer.values()
    assert result["digest"] == digest(made * 2 if to == "far" else made)
    return result


async def serves_again(pipe: AsyncPipe, seconds: float) -> Any:
    """Ask the other host's stage until there is an answer; while it is restarted, requests wait or fail."""
    async with asyncio.timeout(seconds):
        while True:
            with suppress(OmniError):
                return await ask(pipe, "far")
            await asyncio.sleep(0.1)
