"""Options of the test suite, and fixtures of tests that start processes: children can import stages, and nothing
outlives a test.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:  # sessions of the core alone
    pass
else:  # how long an example takes says nothing where tests share processors
    settings.register_profile("few", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("thorough", settings.get_profile("few"), max_examples=200)
    settings.load_profile(os.environ.get("OMNI_EXAMPLES", "few"))

try:
    from omni_transformers.stand_ins import stand_in
except ModuleNotFoundError:  # sessions without it
    pass
else:  # before any test imports transformers, which looks once for what is installed
    stand_in()

os.environ.setdefault("OMNI_WEIGHTS_CACHE", "off")  # nothing is left in the cache of whoever runs the tests
SHARED = [Path(__file__).parent / "helpers", Path(__file__).parents[1] / "examples/demo-training/src"]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*map(str, SHARED), os.environ.get("PYTHONPATH")]))

# A shell lets what it starts in the background ignore Ctrl-C, and every child does so too: tests of Ctrl-C would fail.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-seconds", type=float, default=25.0, help="how long tests/faults/test_soak.py runs")
    parser.addoption("--soak-seed", type=int, help="repeat the decisions of an earlier soak")
    parser.addoption("--worlds", type=int, default=200, help="how many worlds tests/omni_testing/test_world.py runs")


@pytest.fixture
def run_folder() -> Iterator[Path]:
    """A short path for sockets, whose addresses are limited in length; checked to be empty after the test, like
    /dev/shm and the children.
    """
    from leftovers import Before

    before = Before()
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)
        before.expect_nothing_new(Path(folder))


@pytest.fixture
def kernels() -> Iterator[dict[str, Any]]:
    """The installed kernels for a CPU by operation, as ``install`` takes them. None are installed after the test."""
    from omni_core.plugins import load_plugins
    from omni_torch.operations.installed_kernels import install
    from omni_torch.operations.kernel_specs import kernel_specs

    specs = kernel_specs(load_plugins())
    yield {name: [each for each in some if each.device == "cpu"] for name, some in specs.items()}
    install({})
