"""The values of a config by path, as ``--set`` writes them: ``decoder.factory_args.max_running``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

MISSING = object()
"""The value of a path that is not set."""


def by_path(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config's fields, given as plain data. Mappings are descended into; empty ones are left out."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "stages":
            for stage in value:
                rest = {key: each for key, each in stage.items() if key != "name"}
                found |= dict(_leaves(str(stage["name"]), rest))
        elif name != "interface":
            found |= dict(_leaves(name, value))
    return found


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path, value


def is_within(path: str, other: str) -> bool:
    """Return whether a path is another one or a part of it."""
    return f"{path}.".startswith(f"{other}.")


def at(path: str, given: str, value: Any) -> Any:
    """Return what ``value``, set at the path ``given``, says about ``path``, which is equal or a part; :data:`MISSING` if nothing."""
    for key in path.removeprefix(given).strip(".").split(".") if path != given else ():
        if not isinstance(value, Mapping) or key not in value:
            return MISSING
        value = value[key]
    return value


def shown(value: Any) -> str:
    """Return a value as a YAML flow would have it, for people."""
    if value is MISSING:
        return "(removed)"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) and value else repr(value)


def plain(value: Any) -> Any:
    """Return a value as JSON may have it: a number that is not finite as a text."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value
