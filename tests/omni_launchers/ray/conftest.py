"""One cluster for all tests: a head, and a node in each of two racks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from omni_testing.ours.ray import LocalCluster

if find_spec("ray") is None:  # only the nox session ``ray`` installs it
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def temporary() -> Iterator[Path]:
    """The folder of temporary files of the nodes' processes: nothing but these tests makes any there."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(scope="session")
def cluster(temporary: Path) -> Iterator[LocalCluster]:
    """The files of its nodes are all in one folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.setenv("RAY_TMPDIR", str(temporary))
        patch.setenv("RAY_raylet_start_wait_time_s", "120")
        with closing(LocalCluster("b", "c")) as made:
            yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as made:
        yield Path(made)
