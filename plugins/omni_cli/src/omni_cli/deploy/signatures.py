"""The parameters of factories and parts, read from their sources: importing a factory would import torch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache

from omni_core.runtime_api import find_module, normalize


def parameters(reference: str) -> dict[str, str | None] | None:
    """Return what a callable takes by name, with the source of each default (``None``: it is required); ``None`` if that is not known.

    Nothing is imported: functions, methods, ``__init__`` and the fields of attrs classes and dataclasses are read from sources, through
    imports and base classes.
    """
    found = definition(reference)
    if found is None:
        return None
    module, node = found
    if isinstance(node, ast.ClassDef):
        own = _definition(module, [node.name, "__init__"])
        if own is None:
            fields = [
                each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            ]
            return {ast.unparse(each.target): _source(each.value) for each in fields}
        node = own[1]
    assert isinstance(node, ast.FunctionDef)
    named = node.args
    plain = [*named.posonlyargs, *named.args]
    required = [None] * (len(plain) - len(named.defaults))
    pairs = [
        *zip(plain, [*required, *named.defaults], strict=True),
        *zip(named.kwonlyargs, named.kw_defaults, strict=True),
    ]
    return {each.arg: _source(default) for each, default in pairs if each.arg not in ("self", "cls")}


def definition(reference: str) -> tuple[str, ast.ClassDef | ast.FunctionDef] | None:
    """Return the module and the source of a class or function, through imports and base classes; ``None`` if it is not found."""
    module, _, attribute = normalize(reference).partition(":")
    return _definition(module, attribute.split("."))


def _source(node: ast.expr | None) -> str | None:
    return None if node is None else ast.unparse(node)


def _definition(module: str, names: list[str], most: int = 16) -> tuple[str, ast.ClassDef | ast.FunctionDef] | None:
    """Find the class or function of a dotted name, with the module where it is; ``most``: imports and base classes that are followed."""
    tree = source_tree(module) if most else None
    for node in reversed(list(_statements(tree.body if tree is not None else []))):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                if names[0] == (alias.asname or alias.name):
                    return _definition(node.module, [alias.name, *names[1:]], most - 1)
        elif isinstance(node, ast.FunctionDef) and names == [node.name]:
            return module, node
        elif isinstance(node, ast.ClassDef) and node.name == names[0]:
            if len(names) == 1:
                return module, node
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and names[1:] == [each.name]:
                    return module, each
            for base in node.bases:
                if isinstance(base, ast.Subscript):
                    base = base.value
                if isinstance(base, ast.Name) and (found := _definition(module, [base.id, *names[1:]], most - 1)):
                    return found
            return None
    return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, and those under ``if TYPE_CHECKING``, where a module that exports lazily imports its names."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements(node.body)
        else:
            yield node


@cache
def source_tree(module: str) -> ast.Module | None:
    """Return the parsed source of a module; ``None`` if it has none, or there is no such module."""
    try:
        spec = find_module(module)
        source = None if spec is None else getattr(spec.loader, "get_source", lambda name: None)(spec.name)
        return None if source is None else ast.parse(source)
    except (ImportError, SyntaxError, ValueError):
        return None
