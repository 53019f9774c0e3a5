"""Tiny checkpoints, one per shape, and the reference's answers on them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from fish_cases import SHAPES
from safetensors import safe_open

from omni_testing.tiny.fish_s2 import write_tiny_checkpoint

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny-fish")
    return {shape: write_tiny_checkpoint(folder / shape, shape=shape) for shape in SHAPES}


@pytest.fixture(scope="session")
def golden(tiny: dict[str, Path]) -> dict[str, dict[str, np.ndarray]]:
    """The reference's answers by shape (see ``golden/make_golden.py``), on the very weights that were just written."""
    answers = {}
    for shape in SHAPES:
        digest = hashlib.sha256()
        for path in sorted(tiny[shape].glob("*.safetensors")):
            digest.update(path.read_bytes())
        with safe_open(GOLDEN / f"{shape}.safetensors", "np") as file:
            assert file.metadata()["weights"] == digest.hexdigest(), (
                f"the tiny checkpoint {shape} has other weights than the reference was asked with: run golden/make_golden.py"
            )
            answers[shape] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    return answers
