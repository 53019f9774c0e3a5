"""Requirements of installed distributions, read from their metadata without importing anything."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, requires

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def needs_torch(reference: str) -> bool:
    """Return whether the code at ``package.module:attribute`` is of a distribution that requires torch, itself or by one that it
    requires. The distribution is the one called like the package; False if there is none.
    """
    required = _names(re.split(r"[.:]", reference, maxsplit=1)[0])
    return "torch" in required or any("torch" in _names(name) for name in required if name.startswith("omni"))


@cache
def _names(distribution: str) -> frozenset[str]:
    """The names of what a distribution requires without extras."""
    try:
        lines = [line for line in requires(distribution) or () if "extra ==" not in line]
    except (PackageNotFoundError, ValueError):
        return frozenset()
    return frozenset(match[0].lower().replace("_", "-") for match in map(_NAME.match, lines) if match)
