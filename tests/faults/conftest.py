"""Fixtures of the fault tests: nothing outlives a test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(run_folder: Path) -> Path:
    """A short path for sockets; empty again after the test, like /dev/shm and the list of children."""
    return run_folder
