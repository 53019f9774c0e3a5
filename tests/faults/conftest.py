"""Fixtures of the fault tests: children import the stages here, and nothing outlives a test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kept_forks import kept_fork_server as kept_fork_server
from kept_forks import no_server_is_left as no_server_is_left

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def importable_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def folder(run_folder: Path) -> Path:
    """A short path for sockets; empty again after the test, like /dev/shm and the list of children."""
    return run_folder
