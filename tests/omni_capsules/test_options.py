"""The settings of capsules are checked by name, type and range."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from omni_capsules.options import Options
from omni_core.errors import ConfigError


def test_defaults_record_no_inputs_and_no_slow_requests() -> None:
    options = Options.of({"folder": "capsules"})
    assert (options.inputs, options.slow, options.failed) == (False, None, True)
    assert options.folder == str(Path(os.getcwd()) / "capsules")
    assert (options.size, options.spool) == (64_000_000, 256_000_000)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"slow": 1}, r"capsules\.folder: required"),
        ({"folder": ""}, r"capsules\.folder: must be the path of a folder, is ''"),
        ({"folder": "x", "input": True}, r"capsules\.input: no such setting.*inputs"),
        ({"folder": "x", "inputs": 1}, r"capsules\.inputs: must be true or false, is 1"),
        ({"folder": "x", "slow": 0}, r"capsules\.slow: must be a number above 0, is 0"),
        ({"folder": "x", "slow": float("inf")}, r"capsules\.slow: must be a number above 0, is inf"),
        ({"folder": "x", "slow": True}, r"capsules\.slow"),
        ({"folder": "x", "keep": 0}, r"capsules\.keep: must be a whole number from 1 on, is 0"),
        ({"folder": "x", "size_mb": None}, r"capsules\.size_mb: must be a number above 0, is None"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options.of(given)
