"""Tiny checkpoints, and diffusers' own pipeline as the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_testing.tiny.qwen_image import write_tiny_checkpoint


@pytest.fixture(scope="session", params=["a", "b", "c"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("qwen-image") / request.param, shape=request.param, seed=1)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("qwen-image") / "a", shape="a", seed=1)


@pytest.fixture(scope="session")
def editing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("qwen-image") / "edit", shape="edit", seed=1)
