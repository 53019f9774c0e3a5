"""Tiny checkpoints, one per shape, made once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from omni_qwen3.tiny_checkpoint import write_tiny_checkpoint

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    for shape in "abc":
        write_tiny_checkpoint(folder / shape, shape=shape)
    return {shape: folder / shape for shape in "abc"}
