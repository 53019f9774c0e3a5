"""The cases that run by default, and those that only ``nox -s full`` runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], keep: int = 3) -> list[Any]:
    """Return the values of a parameter; all but ``keep`` of them, the first and the last among these, are marked ``full``."""
    made = list(values)
    step = (len(made) - 1) / max(keep - 1, 1)
    kept = {round(number * step) for number in range(keep)}

    def full(value: Any) -> Any:
        if hasattr(value, "marks"):  # of pytest.param
            return pytest.param(*value.values, marks=[*value.marks, pytest.mark.full], id=value.id)
        return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.full)

    return [value if number in kept else full(value) for number, value in enumerate(made)]
