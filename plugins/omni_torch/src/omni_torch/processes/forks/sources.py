"""Modules that import torch, recognised by their sources: a stage of a plain module shares its import without naming it."""

from __future__ import annotations

import ast
from pathlib import Path

from omni_core.api import ProcessSpec
from omni_core.runtime_api import find_module


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
    spec = find_module(reference.partition(":")[0])
    if spec is None or spec.origin is None:
        return False
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):  # ValueError: a compiled module
        return False
    direct = [each.name for node in tree.body if isinstance(node, ast.Import) for each in node.names]
    direct += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level]
    return any(name.partition(".")[0] == "torch" for name in direct)
