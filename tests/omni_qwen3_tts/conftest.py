"""Tiny checkpoints, made when they are asked for, and the reference's answers on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from omni_testing.tiny.qwen3_tts import write_tiny_checkpoint

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a checkpoint by its shape."""
    folder = tmp_path_factory.mktemp("tiny-tts")

    def made(shape: str) -> Path:
        path = folder / shape
        return path if path.exists() else write_tiny_checkpoint(path, shape=shape)

    return made


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    """See ``golden/make_golden.py``."""
    with np.load(GOLDEN / "golden.npz") as file:
        return dict(file)
