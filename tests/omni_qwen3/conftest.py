"""Tiny checkpoints, one per shape, made once, and layers in 8 bits kept without the compiled kernels."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from omni_testing.tiny.qwen3 import write_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    for shape in "abc":
        write_tiny_checkpoint(folder / shape, shape=shape)
    return {shape: folder / shape for shape in "abc"}


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep layers in 8 bits, as where omni-kernels-cpu is installed; elsewhere they become floats."""
    monkeypatch.setattr("omni_qwen3.narrow.few_rows_linear", SimpleNamespace(replaced=lambda device, dtype: True))
