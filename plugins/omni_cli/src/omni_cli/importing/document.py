"""Reads a YAML file of another system into its leaves: each value with its path, its file and its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

from omni_core.api import ConfigError
from omni_core.runtime_api import Document

MOST_LEAVES = 10_000
"""Values of one file, with those that aliases repeat. Deploy files have some hundred."""


@frozen
class Leaf:
    """One value of a file.

    Attributes:
        path: its keys and indices.
        value: a scalar, a list without mappings, or an empty mapping.
        file: as it was named.
        line: from 1 on.
    """

    path: tuple[str | int, ...]
    value: Any
    file: str
    line: int

    @property
    def name(self) -> str:
        """The path as text: ``stages[0].devices``."""
        return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path).removeprefix(".")

    @property
    def where(self) -> str:
        """File and line: ``deploy.yaml:12``."""
        return f"{self.file}:{self.line}"


def read(path: Path) -> list[Leaf]:
    """Return the leaves of a YAML (or JSON) file, in its order. Aliases and merge keys are expanded.

    Raises:
        ConfigError: it cannot be read, is no mapping, names a key twice, or refers to itself; with its line.
    """
    document = Document.read(path)
    if not isinstance(document.values, dict) or not document.values:
        raise ConfigError(f"{path}: must be a mapping of fields")
    leaves = []
    for place, value in _leaves(document.values, ()):
        around = place
        while around and around not in document.lines:
            around = around[:-1]
        leaves.append(Leaf(place, value, str(path), document.lines.get(around, 1)))
        if len(leaves) > MOST_LEAVES:
            raise ConfigError(f"{path}: has more than {MOST_LEAVES:,} values; deploy files have some hundred")
    return leaves


def _leaves(value: Any, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the values below one, which is itself one if it holds no others."""
    if isinstance(value, dict) and (value or not place):
        for key, inner in value.items():
            yield from _leaves(inner, (*place, key))
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*place, index))
    else:
        yield place, value
