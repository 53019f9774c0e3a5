"""Requirements of installed distributions: those that are missing, or installed in another version."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version

from packaging.requirements import InvalidRequirement, Requirement


def ours() -> Iterator[Distribution]:
    """Yield every ``omni-`` distribution and every one with a plugin, each once."""
    seen: set[str] = set()
    for each in distributions():
        name = each.metadata["Name"] or ""
        if name not in seen and (name.startswith("omni-") or each.entry_points.select(group="omni")):
            seen.add(name)
            yield each


def unmet(distribution: Distribution) -> Iterator[str]:
    """Yield a line for each requirement that is not met here; those of extras are not asked for."""
    owner = f"{distribution.metadata['Name']} {distribution.version}"
    for text in distribution.requires or ():
        try:
            required = Requirement(text)
        except InvalidRequirement:
            yield f"{owner} needs {text!r}, which is no valid requirement"
            continue
        if required.marker is not None and not required.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(required.name)
        except PackageNotFoundError:
            yield f"{owner} needs {required.name}, which is not installed: pip install '{required.name}{required.specifier}'"
            continue
        if not required.specifier.contains(installed, prereleases=True):
            wanted = f"{required.name}{required.specifier}"
            yield f"{owner} needs {wanted}, and {installed} is installed: pip install '{wanted}'"
