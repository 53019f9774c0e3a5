"""What stages require, read from the metadata of installed distributions and from sources, without importing anything."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def needs_torch(reference: str) -> bool:
    """Return whether the code at ``package.module:attribute`` is of a distribution that requires torch, itself or by one that it
    requires. The distribution is the one called like the package; False if there is none.
    """
    required = _names(re.split(r"[.:]", reference, maxsplit=1)[0])
    return "torch" in required or any("torch" in _names(name) for name in required if name.startswith("omni"))


def imports_torch(reference: str) -> bool:
    """Return whether importing the module at ``package.module:attribute`` imports torch at once, by its source. False where that
    cannot be read.
    """
    try:
        tree = ast.parse(_source(*reference.partition(":")[0].split(".")).read_bytes())
    except (ImportError, OSError, SyntaxError, ValueError):
        return False
    direct = [each.name for node in tree.body if isinstance(node, ast.Import) for each in node.names]
    direct += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level]
    return any(name.partition(".")[0] == "torch" for name in direct)


def _source(package: str, *inner: str) -> Path:
    """Return where the source of a module is or would be; what is above it is not imported.

    Raises:
        ImportError, ValueError: its package is not found, or is no file.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(package)
    if not inner:
        return Path(spec.origin)
    path = Path(spec.origin).parent.joinpath(*inner)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _names(distribution: str) -> frozenset[str]:
    """The names of what a distribution requires without extras."""
    try:
        lines = [line for line in requires(distribution) or () if "extra ==" not in line]
    except (PackageNotFoundError, ValueError):
        return frozenset()
    return frozenset(match[0].lower().replace("_", "-") for match in map(_NAME.match, lines) if match)
