"""Clients as they are, against a server in an environment of its own; only in the nox session ``clients``, which installs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from client_voices import KEY

SERVER = os.environ.get("OMNI_CLIENTS_SERVER", "")  # the Python of the server's environment
if not SERVER:
    collect_ignore_glob = ["test_*.py"]


@contextmanager
def serving(pipeline: str) -> Iterator[str]:
    """A server over a pipeline; yields HOST:PORT."""
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(here.parents[1] / "helpers")}
    command, pipe = [SERVER, str(here / "serve.py"), pipeline], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address, "the server did not start"
        yield address
    assert server.returncode == 0


@pytest.fixture(scope="session", autouse=True)
def address() -> Iterator[str]:
    """HOST:PORT of a server over the pipeline ``tones``; the variables of OpenAI's clients name it."""
    with serving("tones") as address, pytest.MonkeyPatch.context() as variables:
        variables.setenv("OPENAI_API_KEY", KEY)
        variables.setenv("OPENAI_BASE_URL", f"http://{address}/v1")
        yield address


@pytest.fixture(scope="session")
def hearing() -> Iterator[str]:
    """HOST:PORT of a server over the pipeline ``hear``, which writes down sound while it comes."""
    with serving("hear") as address:
        yield address
