"""Small faults of a module's source: where they can be, and the source with one of them. Nothing depends on lines or paths."""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
FLIPS: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
}  # fmt: skip
SILENT = ("log", "logger", "logging", "warnings", "super")
"""Names that statements call which are not deleted: that no test misses a line of a log says nothing."""


class Statement(NamedTuple):
    """A statement of a function; of a compound one, its condition or what it iterates over.

    Attributes:
        function: the function's qualified name.
        text: the unparsed code.
        occurrence: how many equal ones come before it in the function.
        node: the statement, or the expression.
        parent: the statement.
    """

    function: str
    text: str
    occurrence: int
    node: ast.stmt | ast.expr
    parent: ast.stmt


class Mutation(NamedTuple):
    """A statement and what takes its place."""

    statement: Statement
    operator: str
    after: str


def statements(source: str) -> Iterator[Statement]:
    """Yield every statement of every function."""
    yield from _inside(ast.parse(source).body, "")


def _inside(body: list[ast.stmt], prefix: str) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _inside(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, Function):
            name, seen = f"{prefix}{node.name}", defaultdict[str, int](int)
            for part, parent in _parts(node.body):
                text = ast.unparse(part)
                yield Statement(name, text, seen[text], part, parent)
                seen[text] += 1
            yield from _inside(node.body, f"{name}.<locals>.")
        elif isinstance(node, ast.If | ast.Try) and not prefix:
            yield from _inside(node.body, prefix)


def _parts(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt | ast.expr, ast.stmt]]:
    for node in body:
        if isinstance(node, ast.If | ast.While):
            yield node.test, node
        elif isinstance(node, ast.For | ast.AsyncFor):
            yield node.iter, node
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Raise | ast.Expr):
            yield node, node
        if not isinstance(node, Function | ast.ClassDef):
            for field in ("body", "orelse", "finalbody"):
                yield from _parts(getattr(node, field, []))
            for handler in getattr(node, "handlers", []) + getattr(node, "cases", []):
                yield from _parts(handler.body)


def mutations(source: str) -> Iterator[Mutation]:
    """Yield every mutation of every function."""
    for each in statements(source):
        for operator, after in _whole(each):
            yield Mutation(each, operator, after)
        if isinstance(each.node, ast.Raise | ast.AnnAssign):
            continue
        for path, node in _expressions(each.node):
            for operator, changed in _changed(node):
                whole: Any = copy.deepcopy(each.node) if path else changed
                if path:
                    _put(whole, path, changed)
                yield Mutation(each, operator, ast.unparse(whole))


def _whole(statement: Statement) -> Iterator[tuple[str, str]]:
    """Yield the mutations of a statement as a whole."""
    node, parent = statement.node, statement.parent
    if isinstance(node, ast.Return) and node.value is not None and statement.text != "return None":
        yield "return None", "return None"
    elif isinstance(node, ast.AugAssign):
        yield "delete", "pass"
        if type(node.op) in (ast.Add, ast.Sub):
            yield "swap", ast.unparse(ast.AugAssign(node.target, FLIPS[type(node.op)](), node.value))
    elif (isinstance(node, ast.Raise) and "NotImplemented" not in statement.text) or (
        isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    ):
        yield "delete", "pass"
    elif isinstance(node, ast.Expr):
        called = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(called, ast.Call) and not _root(called.func).lstrip("_").startswith(SILENT):
            yield "delete", "pass"
    elif isinstance(parent, ast.If | ast.While) and isinstance(node, ast.Name | ast.Attribute | ast.Call):
        yield "negate", f"not {statement.text}"


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def _changed(node: Any) -> Iterator[tuple[str, ast.expr]]:
    """Yield the mutations of one expression."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in FLIPS:
        yield "compare", ast.Compare(node.left, [FLIPS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield "and/or", ast.BoolOp(FLIPS[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in FLIPS and not (_is_text(node.left) or _is_text(node.right)):
        yield "swap", ast.BinOp(node.left, FLIPS[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "bool", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "off by one", ast.Constant(node.value + 1)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


Path = tuple[tuple[str, int | None], ...]


def _expressions(node: ast.AST, path: Path = ()) -> Iterator[tuple[Path, ast.AST]]:
    """Yield every expression below a node with the way to it; texts are left out."""
    if path:
        yield path, node
    for name, value in ast.iter_fields(node):
        for index, each in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(each, ast.expr | ast.keyword | ast.comprehension) and not isinstance(each, ast.JoinedStr):
                yield from _expressions(each, (*path, (name, index)))
    if not path and isinstance(node, ast.expr):
        yield (), node


def _put(root: Any, path: Path, new: ast.expr) -> None:
    *way, (name, index) = path
    for each, at in way:
        root = getattr(root, each) if at is None else getattr(root, each)[at]
    if index is None:
        setattr(root, name, new)
    else:
        getattr(root, name)[index] = new


def spliced(source: str, statement: Statement, after: str) -> str:
    """Return the source with ``after`` in place of a statement."""
    node, lines = statement.node, source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None
    before, rest = lines[node.lineno - 1][: node.col_offset], lines[node.end_lineno - 1][node.end_col_offset :]
    text = f"({after})" if isinstance(node, ast.expr) else after
    return b"".join([*lines[: node.lineno - 1], before, text.encode(), rest, *lines[node.end_lineno :]]).decode()
