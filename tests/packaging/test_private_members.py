"""No class overrides or reads a private member of a base class of another distribution: what subclasses call has no underscore."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
SOURCES = [path for pattern in ("omni_*/src", "plugins/*/src", "examples/*/src") for path in ROOT.glob(pattern)]


@frozen(eq=False)
class Class:
    """A class of the sources: its bases by their full names, and what it defines and uses of itself that begins with an underscore."""

    name: str
    bases: tuple[str, ...]
    defines: frozenset[str]
    uses: frozenset[str]

    @property
    def distribution(self) -> str:
        return self.name.partition(".")[0]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [part for each in node.targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def of_self(node: ast.AST) -> Iterator[str]:
    """Yield the private attributes of ``self``, ``cls`` and ``super()`` below a node."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and is_private(each.attr):
            owner = each.value.func if isinstance(each.value, ast.Call) else each.value
            if isinstance(owner, ast.Name) and owner.id in ("self", "cls", "super"):
                yield each.attr


def members(node: ast.ClassDef) -> Iterator[str]:
    """Yield the private members that a class defines: its methods and attributes, and what its methods set of ``self``."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield each.name
        yield from (target.id for target in targets(each) if isinstance(target, ast.Name))
    assigned = [target for each in ast.walk(node) for target in targets(each) if isinstance(target, ast.Attribute)]
    yield from (name for target in assigned for name in of_self(target))


@cache
def classes() -> dict[str, Class]:
    """Return every class of the sources by its full name, and the names under which other modules import it."""
    found: dict[str, Class] = {}
    for source in SOURCES:
        for path in source.rglob("*.py"):
            module = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
            tree = ast.parse(path.read_text())
            known = {
                alias.asname or alias.name: f"{node.module}.{alias.name}"
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    bases = [ast.unparse(each).partition("[")[0] for each in node.bases]
                    full = tuple(known.get(each, f"{module}.{each}") for each in bases)
                    defined = frozenset(filter(is_private, members(node)))
                    name = f"{module}.{node.name}"
                    found[name] = Class(name, full, defined, frozenset(of_self(node)))
    return found


def resolved(name: str) -> Class | None:
    """Return the class of a full name, which may be that of a package that imports it from a module of its own."""
    found = classes()
    if name in found:
        return found[name]
    package, _, last = name.rpartition(".")
    inside = [each for key, each in found.items() if key.startswith(f"{package}.") and key.endswith(f".{last}")]
    return inside[0] if len(inside) == 1 else None


def ancestors(one: Class) -> Iterator[Class]:
    for base in filter(None, map(resolved, one.bases)):
        yield base
        yield from ancestors(base)


def test_no_class_touches_a_private_member_of_another_distributions_class() -> None:
    wrong = []
    for one in classes().values():
        above = [each for each in ancestors(one) if each.distribution != one.distribution]
        own = {
            name for each in (one, *ancestors(one)) if each.distribution == one.distribution for name in each.defines
        }
        for base in above:
            for name in sorted((one.uses | one.defines) & base.defines):
                wrong.append(f"{one.name} {'overrides' if name in own else 'reads'} {base.name}.{name}")
    assert len(classes()) > 1000
    assert not wrong, "\n".join(sorted(set(wrong)))
