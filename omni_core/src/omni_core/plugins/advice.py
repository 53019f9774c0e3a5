"""Advice to install a distribution, from one data file: what those that are known would provide."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def advice() -> dict[str, Any]:
    """Return the content of ``advice.toml``."""
    return tomllib.loads(files(__package__).joinpath("advice.toml").read_text(encoding="utf-8"))


def distribution_for(architectures: Iterable[str]) -> str | None:
    """Return the known distribution that runs checkpoints of one of these architectures; ``None``: there is none."""
    wanted = set(architectures)
    known: dict[str, list[str]] = advice()["architectures"]
    return next((name for name, runs in known.items() if wanted & set(runs)), None)
