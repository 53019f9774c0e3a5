"""Requirements of installed distributions against what is installed, read from metadata, without ``packaging``.

A requirement that depends on an extra or another marker, and a version that is no plain release number, is skipped.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
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
