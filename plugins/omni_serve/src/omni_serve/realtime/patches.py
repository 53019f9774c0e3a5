"""Changes of a configuration as trees of plain data: objects are merged, other values replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_VALUES = ("format", "voice")
"""Objects that are replaced and refused as a whole."""


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``old`` with the values of ``new``."""
    made = dict(old)
    for name, value in new.items():
        before = made.get(name)
        if isinstance(before, dict) and isinstance(value, dict) and name not in _VALUES:
            made[name] = merged(before, value)
        else:
            made[name] = value
    return made


def without(patch: Mapping[str, Any], path: list[str]) -> dict[str, Any]:
    """Return the patch without the field at a path, without the object that lacks it, or without the one value that has it."""
    name, *rest = path or [""]
    rest = [] if name in _VALUES else rest
    made = {key: value for key, value in patch.items() if key != name}
    inner = patch.get(name)
    if rest and isinstance(inner, dict) and rest[0] in inner:
        made[name] = without(inner, rest)
    return made


def at(data: Any, *path: str) -> Any:
    """Return the value at a path, or ``None``."""
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data
