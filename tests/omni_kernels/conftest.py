"""Fixtures of the kernel tests. Without a GPU they run in Triton's interpreter, on the CPU (``nox -s kernels``)."""

from __future__ import annotations

import inspect
import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Draw the same numbers in every run."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _searched_once() -> None:
    """Let Triton's interpreter search its language for what it replaces once, not in every call of a function: a third of the time."""
    if find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1":
        return
    interpreter = import_module("triton.runtime.interpreter")
    is_builtin = import_module("triton.language.core").is_builtin
    replaced = cache(lambda package: [name for name, member in inspect.getmembers(package) if is_builtin(member)])

    def replace(package: Any, builder: Any, scope: Any) -> None:
        for name in replaced(package):
            if is_builtin(member := getattr(package, name)):
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = replace


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
