"""The settings of capsules: ``capsules`` of a config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from attrs import fields, frozen

from omni_core.errors import ConfigError, did_you_mean


@frozen(kw_only=True)
class Options:
    """The settings of a config: what is recorded, and how much of it is kept.

    Attributes:
        folder: where capsules are written; it is made, for this user alone. Relative to the working directory of the program.
        slow: seconds from admission to the end from which on a request is slow. By default none is.
        failed: whether requests that fail leave a capsule.
        inputs: whether capsules hold what stages were given and put out, which is what people wrote and said. Without it they hold
            types, shapes and times only, and no stage can be run from them.
        keep: capsules that are kept in ``folder``; the oldest are removed.
        size_mb: the most that one capsule holds of inputs and outputs, in MB.
        spool_mb: the most that each stage process keeps of requests that run or have lately ended, in MB.
    """

    folder: str
    slow: float | None = None
    failed: bool = True
    inputs: bool = False
    keep: int = 20
    size_mb: float = 64.0
    spool_mb: float = 256.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Check the settings of a config.

        Raises:
            ConfigError: one is unknown, missing or out of range.
        """
        known = {each.name: str(each.type) for each in fields(cls)}
        for name, value in given.items():
            if name not in known:
                raise ConfigError(f"capsules.{name}: no such setting{did_you_mean(name, list(known))}")
            _check(name, known[name], value)
        if "folder" not in given:
            raise ConfigError("capsules.folder: required: the folder in which capsules are written")
        return cls(**{**given, "folder": str(Path(given["folder"]).absolute())})

    @property
    def size(self) -> int:
        """``size_mb`` in bytes."""
        return int(self.size_mb * 1e6)

    @property
    def spool(self) -> int:
        """``spool_mb`` in bytes."""
        return int(self.spool_mb * 1e6)


def _check(name: str, kind: str, value: Any) -> None:
    if kind == "str":
        good, expected = isinstance(value, str) and value != "", "the path of a folder"
    elif kind == "bool":
        good, expected = isinstance(value, bool), "true or false"
    elif kind == "int":
        good, expected = (
            isinstance(value, int) and not isinstance(value, bool) and value >= 1,
            "a whole number from 1 on",
        )
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        good = (value is None and name == "slow") or (is_number and 0 < value < math.inf)
        expected = "a number above 0"
    if not good:
        raise ConfigError(f"capsules.{name}: must be {expected}, is {value!r}")
