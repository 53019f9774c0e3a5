"""Modules that import torch, recognised by their sources: a stage of a plain module shares its import without naming it."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

from omni_core.protocol.specs import ProcessSpec


def preload_of(spec: ProcessSpec) -> list[str]:
    """Return the modules to import before a process is forked: those that its spec names, and before them torch, if a module of its
    stages imports it.
    """
    parts = [part for stage in spec.stages for part in (stage.factory, stage.model_runner, stage.feedback) if part]
    if "torch" in spec.preload or not any(map(imports_torch, parts)):
        return spec.preload
    return ["torch", *spec.preload]


def imports_torch(reference: str) -> bool:
    """Return whether importing the module at ``package.module:attribute`` imports torch at once, by its source. Nothing is imported;
    False where the source cannot be read.
    """
    try:
        tree = ast.parse(_source(*reference.partition(":")[0].split(".")).read_bytes())
    except (ImportError, OSError, SyntaxError, ValueError):
        return False
    direct = [each.name for node in tree.body if isinstance(node, ast.Import) for each in node.names]
    direct += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level]
    return any(name.partition(".")[0] == "torch" for name in direct)


def _source(package: str, *inner: str) -> Path:
    """Return the path of a module's source; what is above it is not imported.

    Raises:
        ImportError: its package is not found, or is no file.
        ValueError: it is a program that was not started as a module.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(package)
    if not inner:
        return Path(spec.origin)
    path = Path(spec.origin).parent.joinpath(*inner)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
