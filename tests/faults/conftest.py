"""Fixtures of the fault tests: children import the stages here, and nothing outlives a test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def importable_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))


def leftovers(before: set[str]) -> set[str]:
    """Return new names in /dev/shm that no living process uses; other programs' are ignored."""
    new = set(os.listdir("/dev/shm")) - before
    used = set()
    for process in psutil.process_iter() if new else ():
        try:
            used |= {Path(each.path).name for each in process.memory_maps(grouped=True)}
        except psutil.Error:
            continue
    return new - used


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path for sockets; empty again after the test, like /dev/shm and the list of children."""
    shared = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as path:
        yield Path(path)
        assert not psutil.Process().children(recursive=True)
        assert not leftovers(shared)
        assert not list(Path(path).glob("omni-*"))
