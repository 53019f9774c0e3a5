"""Requirements of installed distributions, read from their metadata without importing anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distributions, requires, version

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def needs_torch(reference: str) -> bool:
    """Return whether the code at ``package.module:attribute`` is of a distribution that requires torch, itself or by one that it
    requires. The distribution is the one called like the package; False if there is none.
    """
    required = _names(re.split(r"[.:]", reference, maxsplit=1)[0])
    return "torch" in required or any("torch" in _names(name) for name in required if name.startswith("omni"))


def ours() -> Iterator[Distribution]:
    """Yield every ``omni-`` distribution and every one with a plugin, each once."""
    seen: set[str] = set()
    for each in distributions():
        name = each.metadata["Name"] or ""
        if name not in seen and (name.startswith("omni-") or each.entry_points.select(group="omni")):
            seen.add(name)
            yield each


def unmet(distribution: Distribution) -> Iterator[str]:
    """Yield a line for each requirement that is not installed, or in another version."""
    from packaging.requirements import Requirement  # takes 20 ms, which only this needs

    owner = f"{distribution.metadata['Name']} {distribution.version}"
    for needed in map(Requirement, distribution.requires or ()):
        name, wanted = needed.name, f"{needed.name}{needed.specifier}"
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield f"{owner} needs {name}, which is not installed: pip install '{wanted}'"
        else:
            if not needed.specifier.contains(installed, prereleases=True):
                yield f"{owner} needs {wanted}, and {installed} is installed: pip install '{wanted}'"


@cache
def _names(distribution: str) -> frozenset[str]:
    """The names of what a distribution requires without extras."""
    try:
        lines = [line for line in requires(distribution) or () if "extra ==" not in line]
    except (PackageNotFoundError, ValueError):
        return frozenset()
    return frozenset(match[0].lower().replace("_", "-") for match in map(_NAME.match, lines) if match)
