"""A pipeline that writes and speaks, started once, and clients of a server over it without a socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import openai
import pytest
import pytest_asyncio
from omni_serve_clients import SECRET, http_client
from serve_stages import speaking_pipeline

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app
from omni_serve.app import Application


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pipe() -> AsyncIterator[AsyncPipe]:
    """The pipeline, for all tests of this folder."""
    async with open_async(speaking_pipeline()) as pipe:
        yield pipe


@pytest.fixture(scope="session")
def app(pipe: AsyncPipe, tmp_path_factory: pytest.TempPathFactory) -> Application:
    """A server without keys that keeps voices."""
    return create_app(pipe, Settings(voices_dir=tmp_path_factory.mktemp("voices"), aliases=("tts-1",)))


@pytest.fixture(scope="session")
def http(app: Application) -> httpx2.AsyncClient:
    """A plain client."""
    return http_client(app)


@pytest.fixture(scope="session")
def client(app: Application) -> openai.AsyncOpenAI:
    """OpenAI's client."""
    return openai.AsyncOpenAI(
        api_key="none", base_url="http://test/v1", http_client=http_client(app), max_retries=0, timeout=120
    )


@pytest.fixture(scope="session")
def demo_admin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operator's socket of the demo."""
    return tmp_path_factory.mktemp("admin") / "socket"


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory, demo_admin: Path) -> Iterator[str]:
    """``omni serve demo`` in a process of its own; the address of its API. SIGTERM must end it in order."""
    folder = tmp_path_factory.mktemp("demo")
    log = folder / "log"
    arguments = [
        "serve",
        "demo",
        "--option",
        "processes=one",
        "--port",
        "0",
        "--api-key",
        SECRET,
        "--admin",
        str(demo_admin),
        "--log-level",
        "warning",
    ]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "omni_core.cli", *arguments],
            stderr=output,
            stdout=output,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        address = ""
        while not address:
            assert process.poll() is None, log.read_text()
            address = next(
                (line.split()[-1] for line in log.read_text().splitlines() if line.startswith("Serving ")), ""
            )
            if not address:
                time.sleep(0.1)
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()
