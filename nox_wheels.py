"""Wheels of the sessions in noxfile.py: built ones, what they require, and those of a test's plugins."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import nox
from packaging.requirements import Requirement

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
CONSTRAINTS = str(ROOT / "constraints.txt")


def wheels(*names: str) -> list[str]:
    """Return the built wheel of each named distribution."""
    found = []
    for name in names:
        (wheel,) = DIST.glob(f"{name.replace('-', '_')}-*.whl")
        found.append(str(wheel))
    return found


def install_wheels(session: nox.Session, *names: str, extra: tuple[str, ...] = ()) -> None:
    """Install our wheels from ``dist/``, again even if the version did not change, and everything else from the index."""
    session.install("-c", CONSTRAINTS, "--find-links", str(DIST), *wheels(*names), *extra)
    session.install("--no-deps", "--force-reinstall", *wheels(*names))


def lower_bounds(name: str) -> Iterator[tuple[str, str]]:
    """Return the direct third-party requirements of a wheel of ours, with the lowest version of each, except torch and
    other extras.
    """
    with ZipFile(wheels(name)[0]) as archive:
        (metadata,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    for line in headers.get_all("Requires-Dist", []):
        need = Requirement(line)
        wanted = need.marker is None or need.marker.evaluate({"extra": ""})
        if wanted and not need.name.startswith("omni-") and need.name != "torch":
            yield need.name, next(each.version for each in need.specifier if each.operator == ">=")


def pinned(name: str) -> str:
    """Return the line of constraints.txt for a package."""
    (line,) = re.findall(rf"(?m)^{name}==\S+$", Path(CONSTRAINTS).read_text())
    return line


def plugin_wheels(session: nox.Session, **levels: int) -> list[str]:
    """Make wheels of ``tests/packaging/old_plugin`` under other names, for other levels."""
    folder = Path(session.virtualenv.location) / "plugins"
    for name, level in levels.items():
        project = folder / name
        shutil.rmtree(project, ignore_errors=True)
        shutil.copytree(ROOT / "tests/packaging/old_plugin", project)
        (project / "src/omni_old_plugin").rename(project / "src" / f"omni_{name}_plugin")
        for path in [*project.rglob("*.py"), project / "pyproject.toml"]:
            text = re.sub(r"omni([-_])old([-_])plugin", rf"omni\1{name}\2plugin", path.read_text())
            path.write_text(text.replace("commands-0", f"commands-{level}"))
        session.run(
            "python", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project), silent=True
        )
    return [str(next(folder.glob(f"omni_{name}_plugin-*.whl"))) for name in levels]
