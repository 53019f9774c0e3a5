"""What the runtime tests share: children can import the stages beside the tests, and nothing outlives a test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).parent


@pytest.fixture
def importable_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes import the modules beside the tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def run_folder() -> Iterator[Path]:
    """A short path for sockets, whose addresses have a limit; empty again after the test, like /dev/shm and the children."""
    shared = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)
        assert not psutil.Process().children(recursive=True)
        assert set(os.listdir("/dev/shm")) <= shared
        assert not list(Path(folder).glob("omni-*"))
