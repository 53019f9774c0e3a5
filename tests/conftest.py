"""Options of the test suite, and fixtures of tests that start processes: children can import stages, and nothing
outlives a test.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

STAGES = Path(__file__).parent / "end_to_end" / "runtime"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-seconds", type=float, default=25.0, help="how long tests/faults/test_soak.py runs")
    parser.addoption("--soak-seed", type=int, help="repeat the decisions of an earlier soak")
    parser.addoption("--slow", action="store_true", help="also run the tests that wait for most of a minute")


@pytest.fixture
def importable_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes import the stage modules of tests/end_to_end/runtime."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAGES), os.environ.get("PYTHONPATH", "")]))


def leftovers(before: set[str]) -> set[str]:
    """Return new names in /dev/shm that no living process uses; those of other programs and other tests are ignored."""
    import psutil

    new = set(os.listdir("/dev/shm")) - before
    used = set()
    for process in psutil.process_iter() if new else ():
        try:
            used |= {Path(each.path).name for each in process.memory_maps(grouped=True)}
        except psutil.Error:
            continue
    return {name for name in new - used if os.path.exists(f"/dev/shm/{name}")}


@pytest.fixture
def run_folder() -> Iterator[Path]:
    """A short path for sockets, whose addresses are limited in length; checked to be empty after the test, like
    /dev/shm and the children.
    """
    import psutil  # the session without plugins has none

    shared, others = set(os.listdir("/dev/shm")), set(psutil.Process().children(recursive=True))
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)
        assert not set(psutil.Process().children(recursive=True)) - others, "processes that the test started are left"
        assert not leftovers(shared)
        assert not list(Path(folder).glob("omni-*"))
