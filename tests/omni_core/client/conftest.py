"""A small chat pipeline, started once for the tests of a module."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_stages import chat_pipeline

import omni_core as omni


@pytest.fixture(scope="module")
def pipe() -> Iterator[omni.Pipe]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        with omni.open(chat_pipeline(Path(folder), max_in_flight=4)) as pipe:
            yield pipe
        assert not list(Path(folder).iterdir())
