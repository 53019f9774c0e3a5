"""A small chat pipeline, started once for the tests of a module."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import omni_core as omni

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def stages() -> Iterator[ModuleType]:
    """The module ``chat_stages``, which child processes can import too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
        patch.syspath_prepend(HERE)
        spec = spec_from_file_location("chat_stages", HERE / "chat_stages.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def pipe(stages: ModuleType) -> Iterator[omni.Pipe]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        with omni.open(stages.chat_pipeline(Path(folder), max_in_flight=4)) as pipe:
            yield pipe
        assert not list(Path(folder).iterdir())
