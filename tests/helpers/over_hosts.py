"""A pipeline over two loopback addresses, and the host servers of the second one."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from omni_core.client import AsyncPipe
from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest
from omni_launchers.hosts.curve import CurveKeys
from omni_testing.ours.hosts import HERE, THERE, free_address

SECONDS = 60.0
"""Only a failure waits that long."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def key_file(folder: Path) -> Path:
    CurveKeys.new().write(folder / "run.key")
    return folder / "run.key"


def two_hosts(folder: Path, key_file: Path, serving: str | None = None, **fields: Any) -> PipelineConfig:
    """Return a pipeline whose stage ``far`` runs on host ``b``, which serves there or else joins."""
    timeout = fields.pop("startup_timeout", 2 * SECONDS)
    stages = [
        StageConfig(
            name="choose",
            factory="host_stages:choose",
            process="choose",
            next=["near", "far"],
            route_fn="host_stages:route",
        ),
        StageConfig(name="near", factory="host_stages:work", process="near", terminal=True),
        StageConfig(
            name="far",
            factory="host_stages:work",
            process="far",
            terminal=True,
            host="b",
            startup_timeout=timeout,
        ),
    ]
    accept = None if serving is not None else free_address(HERE)
    return PipelineConfig(
        model_path="none",
        stages=stages,
        relay_backend="host_stages:NoRelay",
        terminal_stages_fn="host_stages:terminals",
        endpoints=EndpointsConfig(str(folder), HERE, str(key_file), accept),
        hosts={"b": serving} if serving is not None else {},
        **fields,
    )


async def ask(pipe: AsyncPipe, to: str, seconds: float = 0.0) -> Any:
    answer = await pipe.submit(OmniRequest({"to": to, "seconds": seconds}))
    return answer[to]


async def serves_again(pipe: AsyncPipe, to: str) -> Any:
    """Ask until there is an answer; while a stage is restarted, requests wait or fail."""
    async with asyncio.timeout(SECONDS):
        while True:
            with suppress(Exception):
                return await ask(pipe, to)
            await asyncio.sleep(0.1)


async def held(pipe: AsyncPipe, to: str, seconds: float = 600.0, count: int = 1) -> list[asyncio.Future[Any]]:
    """Return requests that a stage has; it computes for minutes."""
    asked = [asyncio.ensure_future(ask(pipe, to, seconds)) for _ in range(count)]
    async with asyncio.timeout(SECONDS):
        while (await pipe.statistics()).get(to, {}).get(to, {}).get("in_flight", 0) < count:
            await asyncio.sleep(0.02)
    return asked


async def ended(process: psutil.Process) -> None:
    """Wait until a process is gone, which may be another one's child."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, [process], SECONDS)
    assert not alive, alive


@asynccontextmanager
async def omni_hosts(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``omni hosts``; its first line has been printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "omni_core.cli", "hosts", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), SECONDS)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.wait(), SECONDS)


def joining(config: PipelineConfig, key_file: Path, *arguments: str) -> Any:
    """``omni hosts join`` for a pipeline, from the other address."""
    assert config.endpoints.accept is not None
    listen = f"tcp://{THERE}:0"
    given = arguments or ("--as", "b")
    return omni_hosts("join", config.endpoints.accept, "--key", str(key_file), "--listen", listen, *given)
