"""The types of what a callable takes, read from its source: a value of a config is checked without an import of the callable.

Only what plain data can be is known: numbers, texts, booleans, lists and mappings, in unions, literals and aliases. Any other annotation
accepts everything.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from attrs import frozen

from omni_cli.deploy.signatures import definition, source_tree

_NAMES = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "a text", "None": "null"}
_TEXTS = ("str", "Path", "PurePath", "PathLike")
_LISTS = ("list", "List", "Sequence", "Iterable", "Collection", "tuple", "Tuple", "set", "Set", "frozenset")
_MAPPINGS = ("dict", "Dict", "Mapping", "MutableMapping")
_NEVER = ("Callable", "type", "Type")
"""Annotations that no plain data fulfil: beside others in a union, they add nothing."""

_MOST = 16
"""Aliases and imports that are followed."""


@frozen
class Kind:
    """The values that an annotation accepts: a check, and its name in messages."""

    name: str
    accepts: Callable[[object], bool]


_ANYTHING = Kind("anything", lambda value: True)
_NOTHING = Kind("", lambda value: False)


def kinds(reference: str) -> dict[str, Kind] | None:
    """Return what the callable of a dotted reference takes, by the name of a parameter; ``None`` if its source is not found.

    A function or class whose decorator may change what it takes accepts everything; of an attrs class or dataclass, the fields count.
    """
    found = definition(reference)
    if found is None:
        return None
    node = found[1]
    own = definition(f"{reference}.__init__") if isinstance(node, ast.ClassDef) else found
    if own is None and isinstance(node, ast.ClassDef):
        return {name: _kind(each, found[0]) for name, each in _fields(node)}
    assert own is not None
    function = own[1]
    assert isinstance(function, ast.FunctionDef)
    if {ast.unparse(each) for each in (*node.decorator_list, *function.decorator_list)} - {
        "classmethod",
        "staticmethod",
    }:
        return {}
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return {each.arg: _kind(each.annotation, own[0]) for each in every}


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield the fields of a class without ``__init__``, but those that are made by a call, which may convert what they are given."""
    for each in node.body:
        if (
            isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and not isinstance(each.value, ast.Call)
        ):
            yield each.target.id, each.annotation


def _kind(node: ast.expr | None, module: str, most: int = _MOST) -> Kind:
    """Return what an annotation of ``module`` accepts."""
    if node is None or most == 0:
        return _ANYTHING
    if isinstance(node, ast.Constant):
        if node.value is None:
            return Kind("null", lambda value: value is None)
        if not isinstance(node.value, str):
            return _ANYTHING
        try:
            return _kind(ast.parse(node.value, mode="eval").body, module, most - 1)
        except SyntaxError:
            return _ANYTHING
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _any_of([_kind(each, module, most) for each in (node.left, node.right)])
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _generic(_last(node.value), list(inner), module, most)
    name = _last(node)
    if name in _NAMES or name in _TEXTS:
        return _plain(name)
    if name in (*_LISTS, *_MAPPINGS, *_NEVER):
        return _generic(name, [], module, most)
    return _alias(name, module, most) if isinstance(node, ast.Name) else _ANYTHING


def _last(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _plain(name: str) -> Kind:
    if name == "bool":
        return Kind(_NAMES[name], lambda value: isinstance(value, bool))
    if name in ("int", "float"):
        numbers = int if name == "int" else (int, float)
        return Kind(_NAMES[name], lambda value: isinstance(value, numbers) and not isinstance(value, bool))
    return Kind(_NAMES["str"], lambda value: isinstance(value, str))


def _generic(name: str, inner: list[ast.expr], module: str, most: int) -> Kind:
    if name == "Optional":
        return _any_of([*(_kind(each, module, most) for each in inner), Kind("null", lambda value: value is None)])
    if name == "Union":
        return _any_of([_kind(each, module, most) for each in inner])
    if name in ("Annotated", "Final", "ClassVar") and inner:
        return _kind(inner[0], module, most)
    if name == "Literal":
        choices = [each.value for each in inner if isinstance(each, ast.Constant)]
        listed = ", ".join(map(str, choices))
        known = {(type(each), each) for each in choices}
        return (
            Kind(f"one of {listed}", lambda value: (type(value), value) in known)
            if len(choices) == len(inner)
            else _ANYTHING
        )
    if name in _NEVER:
        return _NOTHING
    if name in _LISTS:
        each = _kind(inner[0], module, most) if len({ast.unparse(one) for one in inner} - {"..."}) == 1 else _ANYTHING
        of = "" if each is _ANYTHING else f", each {each.name}"
        return Kind(f"a list{of}", lambda value: isinstance(value, list | tuple) and all(map(each.accepts, value)))
    if name in _MAPPINGS:
        value_kind = _kind(inner[1], module, most) if len(inner) == 2 else _ANYTHING
        of = "" if value_kind is _ANYTHING else f", each value {value_kind.name}"
        return Kind(
            f"a mapping{of}", lambda value: isinstance(value, dict) and all(map(value_kind.accepts, value.values()))
        )
    return _ANYTHING


def _any_of(found: list[Kind]) -> Kind:
    if _ANYTHING in found:
        return _ANYTHING
    named = [each for each in found if each is not _NOTHING]
    if not named:
        return _NOTHING
    return Kind(" or ".join(each.name for each in named), lambda value: any(each.accepts(value) for each in named))


def _alias(name: str, module: str, most: int) -> Kind:
    """Return what a name of a module stands for, if it is an alias of a type, maybe of another module."""
    tree = source_tree(module)
    for node in reversed(tree.body if tree is not None else []):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    if alias.name in (*_TEXTS, *_LISTS, *_MAPPINGS, *_NEVER):
                        return _kind(ast.Name(alias.name), module, most - 1)
                    return _alias(alias.name, node.module, most - 1) if most > 1 else _ANYTHING
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in [ast.unparse(each) for each in targets]:
                return _kind(node.value, module, most - 1)
        elif type(node).__name__ == "TypeAlias" and name == ast.unparse(node.name):  # type: ignore[attr-defined]
            return _kind(node.value, module, most - 1)  # type: ignore[attr-defined]
    return _ANYTHING
