"""Requirements of installed distributions, read from their metadata without importing anything and without ``packaging``.

Of versions, a requirement that depends on an extra or another marker, or on no plain release number, is not compared.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distributions, requires, version
from itertools import zip_longest

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?")
_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*([0-9.]+)")
_COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


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
    owner = f"{distribution.metadata['Name']} {distribution.version}"
    for match in filter(None, map(_REQUIREMENT.fullmatch, distribution.requires or ())):
        name, clauses = match[1], match[2].strip()
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield f"{owner} needs {name}, which is not installed: pip install '{name}{clauses}'"
            continue
        if not satisfies(installed, clauses):
            yield f"{owner} needs {name}{clauses}, and {installed} is installed: pip install '{name}{clauses}'"


def satisfies(installed: str, clauses: str) -> bool:
    """Return whether a version meets clauses such as ``>=0.1,<0.2``; those that are not understood count as met."""
    release = re.match(r"[0-9.]+", installed)
    for match in filter(None, map(_CLAUSE.fullmatch, (each.strip() for each in clauses.split(",")))):
        pairs = zip_longest(_numbers(release[0] if release else match[2]), _numbers(match[2]), fillvalue=0)
        have, wanted = zip(*pairs, strict=True)
        if release and not _COMPARE[match[1]](have, wanted):
            return False
    return True


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".") if part]


@cache
def _names(distribution: str) -> frozenset[str]:
    """The names of what a distribution requires without extras."""
    try:
        lines = [line for line in requires(distribution) or () if "extra ==" not in line]
    except (PackageNotFoundError, ValueError):
        return frozenset()
    return frozenset(match[1].lower().replace("_", "-") for match in map(_REQUIREMENT.match, lines) if match)
