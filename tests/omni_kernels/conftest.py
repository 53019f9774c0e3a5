"""Fixtures of the kernel tests. Without a GPU they run in Triton's interpreter, on the CPU (``nox -s kernels``)."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Draw the same numbers in every run."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def device() -> str:
    """The device of the kernels."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("neither a GPU nor TRITON_INTERPRET=1: run `nox -s kernels`")
    return "cpu"


@pytest.fixture
def layers(device: str) -> Any:
    """The module of decode steps."""
    return import_module("omni_kernels.layers")
