"""Comparison of results of any kind: plain data, tensors, arrays and attrs classes. Imports no tensor library."""

from __future__ import annotations

import math
from typing import Any

TOLERANCE = 1e-4
"""Absolute and relative tolerance for floating-point numbers."""


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return the first place where two values differ, with what is there, or ``None`` if they are equal.

    Types, shapes and dtypes must be the same; floating-point numbers may differ by :data:`TOLERANCE`.

    Args:
        path: of the values, for the message.
    """
    if type(one) is not type(other):
        return f"{path}: a {type(one).__name__} and a {type(other).__name__}"
    if hasattr(one, "dtype") and hasattr(one, "shape"):
        return _of_arrays(one, other, path)
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{path}: keys {sorted(map(str, one))} and {sorted(map(str, other))}"
        return _first((one[key], other[key], f"{path}[{key!r}]") for key in one)
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{path}: {len(one)} and {len(other)} items"
        return _first((a, b, f"{path}[{index}]") for index, (a, b) in enumerate(zip(one, other, strict=True)))
    if isinstance(one, float):
        good = math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    elif names := [each.name for each in getattr(type(one), "__attrs_attrs__", ())]:
        return _first((getattr(one, name), getattr(other, name), f"{path}.{name}") for name in names)
    else:
        good = bool(one == other)
    return None if good else f"{path}: {one!r:.100} and {other!r:.100}"


def alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal in the sense of :func:`difference`."""
    return difference(one, other) is None


def _first(pairs: Any) -> str | None:
    return next((found for each in pairs if (found := difference(*each)) is not None), None)


def _of_arrays(one: Any, other: Any, path: str) -> str | None:
    """Compare tensors, arrays or array scalars by operations that torch and numpy share."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{path}: {one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    good = one == other
    if "float" in str(one.dtype):
        good = good | (abs(one - other) <= TOLERANCE + TOLERANCE * abs(other))
    wrong = int((~good).sum())
    return f"{path}: {wrong} of {math.prod(one.shape)} values differ" if wrong else None
