"""The tiny checkpoint, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_kokoro.tiny import write_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("kokoro") / "tiny")
