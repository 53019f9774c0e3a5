"""Tiny checkpoints, one per shape, made once, and transformers' own model of each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from omni_qwen25.tiny_checkpoint import write_tiny_checkpoint

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny25")
    return {shape: write_tiny_checkpoint(folder / shape, shape=shape) for shape in "abc"}
