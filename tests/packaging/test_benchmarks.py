"""Imports of benchmarks, all of which must be there: nothing else runs them when the code they measure moves."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HELPERS = Path(__file__).parents[1] / "helpers"
SCRIPTS = sorted(BENCHMARKS.glob("*.py"))
ELSEWHERE = {"omni_launchers.ray", "omni_sglang"}
"""Installed in environments of their own."""


@cache
def missing(module: str, name: str) -> bool:
    """Return whether ``from module import name`` fails."""
    found = importlib.import_module(module)
    if hasattr(found, name):
        return False
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return True
    return False


def test_what_a_benchmark_imports_is_there() -> None:
    assert len(SCRIPTS) > 10
    assert not {str(script): wrong for script in SCRIPTS if (wrong := wrong_imports(script))}


def wrong_imports(script: Path) -> list[str]:
    """Return what a script imports of ours that is not there."""
    wrong = []
    text = script.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            package = node.module.partition(".")[0]
            if package.startswith("omni_") and package not in ELSEWHERE:
                wrong += [f"{node.module}.{each.name}" for each in node.names if missing(node.module, each.name)]
            elif (HELPERS / f"{package}.py").exists() and '"tests/helpers"' in text:
                names = defined(HELPERS / f"{package}.py")
                wrong += [f"{node.module}.{each.name}" for each in node.names if each.name not in names]
            elif (BENCHMARKS / f"{package}.py").exists():
                names = defined(BENCHMARKS / f"{package}.py")
                wrong += [f"{node.module}.{each.name}" for each in node.names if each.name not in names]
            elif (HELPERS / f"{package}.py").exists():
                wrong.append(f"{package}, which is in tests/helpers, and that is not on the path")
    return wrong


@cache
def defined(script: Path) -> set[str]:
    """Return the names that a script defines at its top level, without running it."""
    names: set[str] = set()
    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {each.asname or each.name for each in node.names}
    return names
