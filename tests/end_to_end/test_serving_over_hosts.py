"""``omni serve --accept`` with a host that joins: the demo speaks from there as it does from here, and again after the host was lost."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from omni_core.hookspecs import works
from omni_core.plugins import load_plugins

pytest.importorskip("omni_demo.speech")
pytest.importorskip("omni_serve")
httpx = pytest.importorskip("httpx2")

from omni_launchers.hosts.curve import CurveKeys  # noqa: E402
from omni_testing.ours.hosts import HERE, THERE, free_address  # noqa: E402

pytestmark = pytest.mark.full

ONE = ("--option", "processes=one")
TWO = (
    *ONE,
    *(f"--set={stage}.{field}" for stage in ("talker_ar", "code2wav") for field in ("process=voice", "host=gpus")),
)
"""The demo in one process, and in one on each of two hosts."""


@contextmanager
def omni(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an ``omni`` command beside the test; it ends in order."""
    with open(log, "ab") as file:
        process = subprocess.Popen([sys.executable, "-m", "omni_core.cli", *arguments], stdout=file, stderr=file)
    try:
        yield process
        if process.poll() is None:
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def until(condition: Callable[[], Any], what: str, log: Path, seconds: float = 90.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s\n{log.read_text()}"
        time.sleep(0.1)


def is_ready(url: str) -> bool:
    """Return whether a server says that it is ready."""
    try:
        answer = httpx.get(f"{url}/health/ready", timeout=5.0)
    except httpx.HTTPError:
        return False
    return bool(answer.status_code == 200)


def spoken(url: str) -> tuple[str, bytes]:
    """Return the text of an answer, and its samples."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Say hello."}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "ethan", "format": "pcm16"},
        "seed": 1,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120.0)
    assert answer.status_code == 200, answer.text
    audio = json.loads(answer.text)["choices"][0]["message"]["audio"]
    return audio["transcript"], base64.b64decode(audio["data"])


@pytest.mark.timeout(280)
def test_a_host_joins_a_server_is_lost_and_joins_again(tmp_path: Path) -> None:
    joining = [each for hook, each, _, answer in load_plugins().check() if hook == "omni_relays" and works(answer)]
    if not any(getattr(each, "across_hosts", False) for each in joining):
        pytest.skip("no relay that joins hosts can work here")
    key = tmp_path / "run.key"
    CurveKeys.new().write(key)
    head, port, alone = free_address(HERE), free_address(HERE).rpartition(":")[2], free_address(HERE).rpartition(":")[2]
    url, other = f"http://{HERE}:{port}", f"http://{HERE}:{alone}"
    log, there = tmp_path / "serve.log", tmp_path / "join.log"
    join = ("hosts", "join", head, "--key", str(key), "--as", "gpus", "--listen", f"tcp://{THERE}:0")
    serve = ("serve", "demo", "--port", port, "--accept", head, "--host-key", str(key), *TWO)
    with omni(log, *serve) as server:
        until(lambda: "waiting for hosts to join" in log.read_text(), "the server waits for its host", log)
        assert not is_ready(url), "ready without the stages that speak"
        with omni(there, *join) as host:
            with omni(tmp_path / "alone.log", "serve", "demo", "--port", alone, *ONE):
                until(lambda: is_ready(url), "the server is ready", log)
                until(lambda: is_ready(other), "the other server is ready", tmp_path / "alone.log")
                expected = spoken(other)
            assert expected[0] == "Hello, nice to meet you."
            assert len(expected[1]) > 24_000
            assert spoken(url) == expected
            os.kill(host.pid, signal.SIGKILL)
            host.wait()
            until(lambda: not is_ready(url), "the server says that stages are missing", log)
            assert httpx.get(f"{url}/health", timeout=30.0).status_code == 200
        with omni(there, *join) as host:
            until(lambda: is_ready(url), "the server is ready again", log)
            assert spoken(url) == expected
            server.terminate()
            assert server.wait(60) == 0
            assert host.poll() is None, "the host waits for the next run"
