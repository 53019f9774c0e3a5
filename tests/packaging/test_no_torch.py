"""The core imports torch in one module, and in no other, not even lazily or for types."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

CORE = Path(__file__).parents[2] / "omni_core/src/omni_core"
ALLOWED = CORE / "protocol/tensors.py"
TOOLKITS = {"torch", "torchaudio", "torchvision", "transformers", "omni_torch"}


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and module of every import: statements anywhere in a file, and calls such as ``import_module("torch")``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if name in ("import_module", "__import__", "importorskip") and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value)


def test_only_one_module_of_the_core_imports_torch() -> None:
    found = [
        f"{path.relative_to(CORE)}:{line} imports {name}"
        for path in sorted(CORE.rglob("*.py"))
        if path != ALLOWED
        for line, name in imported(ast.parse(path.read_text()))
        if name.partition(".")[0] in TOOLKITS
    ]
    assert not found, "; ".join(found)


def test_imports_are_found_in_every_form() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch
def f():
    from torch.nn import Module
    importlib.import_module("torch")
    __import__("torch.cuda")
"""
    assert [name for _, name in imported(ast.parse(source))] == [
        "typing",
        "torch",
        "torch.nn",
        "torch",
        "torch.cuda",
    ]
