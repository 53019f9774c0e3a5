"""Requirements of installed distributions against what is installed, read from metadata, without ``packaging``.

Understands names with version clauses (``>=0.1,<0.2``). A requirement that depends on an extra or another marker, or whose
version is not a plain release number, is skipped: pip has checked it when it installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version

_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?\s*$")
_CLAUSE = re.compile(r"^(>=|<=|==|!=|~=|>|<)\s*([0-9]+(?:\.[0-9]+)*)(\.\*)?$")
_RELEASE = re.compile(r"^[0-9]+(?:\.[0-9]+)*")


def ours() -> Iterator[Distribution]:
    """Yield the core, every ``omni-`` distribution and every one with a plugin, each once."""
    seen: set[str] = set()
    for each in distributions():
        name = each.metadata["Name"] or ""
        if name not in seen and (name.startswith("omni-") or each.entry_points.select(group="omni")):
            seen.add(name)
            yield each


def unmet(distribution: Distribution) -> Iterator[str]:
    """Yield a line for each requirement that is not installed, or in another version."""
    owner = f"{distribution.metadata['Name']} {distribution.version}"
    for text in distribution.requires or ():
        match = _REQUIREMENT.match(text)
        if match is None:
            continue
        name, clauses = match[1], match[2].strip()
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield f"{owner} needs {name}, which is not installed: pip install '{name}{clauses}'"
            continue
        if not satisfies(installed, clauses):
            yield f"{owner} needs {name}{clauses}, and {installed} is installed: pip install '{name}{clauses}'"


def satisfies(installed: str, clauses: str) -> bool:
    """Return whether a version meets clauses such as ``>=0.1,<0.2``; true if either is not understood."""
    release = _RELEASE.match(installed)
    return release is None or all(
        _meets(_numbers(release[0]), each.strip()) for each in clauses.split(",") if each.strip()
    )


def _meets(have: list[int], clause: str) -> bool:
    match = _CLAUSE.match(clause)
    if match is None:
        return True
    operator, wanted = match[1], _numbers(match[2])
    if operator in ("==", "!=") and match[3]:
        return (have[: len(wanted)] == wanted) == (operator == "==")
    if operator == "~=":
        return have[: len(wanted) - 1] == wanted[:-1] and _padded(have, wanted)[0] >= wanted
    one, other = _padded(have, wanted)
    return {
        ">=": one >= other,
        "<=": one <= other,
        "==": one == other,
        "!=": one != other,
        ">": one > other,
        "<": one < other,
    }[operator]


def _padded(one: list[int], other: list[int]) -> tuple[list[int], list[int]]:
    width = max(len(one), len(other))
    return one + [0] * (width - len(one)), other + [0] * (width - len(other))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]
