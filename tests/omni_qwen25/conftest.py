"""Tiny checkpoints, one per shape, made once, and transformers' own model of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_testing.tiny.qwen25 import write_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny25")
    return {shape: write_tiny_checkpoint(folder / shape, shape=shape) for shape in "abc"}
