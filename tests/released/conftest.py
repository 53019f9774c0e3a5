"""Tests of released weights run in `nox -s released` alone: they download 390 MB, and take minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

collect_ignore_glob = [] if "OMNI_RELEASED" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def folder() -> Path:
    """Folder of the downloaded packages and what is made of them."""
    made = Path(os.environ["OMNI_RELEASED"])
    made.mkdir(parents=True, exist_ok=True)
    return made
