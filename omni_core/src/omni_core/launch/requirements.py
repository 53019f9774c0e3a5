"""Which stages compute with torch, read from the requirements of installed distributions without importing anything."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, requires

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def needs_torch(reference: str) -> bool:
    """Return whether the code at ``package.module:attribute`` is of a distribution that requires torch, itself or by one that it
    requires. The distribution is the one called like the package; False if there is none.
    """
    required = _requirements(re.split(r"[.:]", reference, maxsplit=1)[0])
    return "torch" in required or any("torch" in _requirements(name) for name in required if name.startswith("omni"))


@cache
def _requirements(distribution: str) -> frozenset[str]:
    """The names of what a distribution requires without extras."""
    try:
        lines = requires(distribution) or []
    except (PackageNotFoundError, ValueError):
        return frozenset()
    found = [_NAME.match(line) for line in lines if "extra ==" not in line]
    return frozenset(match.group().lower().replace("_", "-") for match in found if match)
