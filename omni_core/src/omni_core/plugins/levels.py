"""API levels: what a plugin's module says it supports, read from its source before anything of the plugin is imported.

Levels exist per kind of hook, so that a change of the relay contract does not touch who provides a command.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Any

from attrs import frozen

from omni_core import __version__
from omni_core.errors import did_you_mean
from omni_core.hookspecs import API_LEVELS, HOOKS, kind_of

Range = tuple[int, int]
Supports = dict[str, Range]
"""By hook: the lowest and the highest API level that a plugin works with."""


@frozen
class Declaration:
    """What a plugin's source says. ``hooks``: those that it visibly implements; ``supports``: ``None`` if it cannot be read there."""

    hooks: tuple[str, ...]
    supports: Supports | None


def read_declaration(module: str) -> Declaration:
    """What the source of a module declares. Nothing is imported, not even the packages that the module lies in.

    Raises:
        ValueError, SyntaxError: the declaration, or the module, makes no sense.
    """
    source = _source(module)
    names: list[str] = []
    supports: Supports | None = None
    for statement in ast.parse(source).body if source is not None else []:
        value = getattr(statement, "value", None)
        bound = list(_bound_names(statement))
        names += bound
        if "supports" in bound and value is not None:
            supports = _literal(value)
    return Declaration(tuple(name for name in HOOKS if name in names), supports)


def parsed(value: Any) -> Supports:
    """``(lowest, highest)`` for all kinds, or a range for each of some kinds, as ranges by hook.

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(value, dict):
        return dict.fromkeys(HOOKS, _range(value, "supports"))
    kinds = {kind_of(hook): hook for hook in HOOKS}
    for kind in value:
        if kind not in kinds:
            raise ValueError(f"supports[{kind!r}]: there is no such kind of hook{did_you_mean(kind, kinds)}")
    return {kinds[kind]: _range(each, f"supports[{kind!r}]") for kind, each in value.items()}


def complaint(supports: Supports, hooks: Iterable[str], distribution: str, version: str) -> str:
    """Why a plugin with these hooks cannot be used with this core, and which package to upgrade; empty if it can."""
    wrong = {hook: supports[hook] for hook in hooks if hook in supports and not fits(hook, supports[hook])}
    if not wrong:
        return ""
    upgrades = {
        f"omni-core ({__version__} is installed)"
        if levels[0] > API_LEVELS[hook]
        else f"{distribution} ({version} is installed)"
        for hook, levels in wrong.items()
    }
    offered = described({hook: (API_LEVELS[hook], API_LEVELS[hook]) for hook in wrong})
    return f"it is made for {described(wrong)}, this core offers {offered}; upgrade {' and '.join(sorted(upgrades))}"


def described(supports: Supports) -> str:
    """Levels in words: ``API level 1`` for all kinds alike, else ``API level 1 to 2 of relays, 1 of commands``."""
    kinds: dict[Range, list[str]] = {}
    for hook, levels in supports.items():
        kinds.setdefault(levels, []).append(kind_of(hook))
    if not kinds:
        return "no API level"
    if len(supports) == len(HOOKS) and len(kinds) == 1:
        return f"API level {_words(*kinds)}"
    return "API level " + ", ".join(f"{_words(levels)} of {' and '.join(names)}" for levels, names in kinds.items())


def fits(hook: str, levels: Range) -> bool:
    """Whether a plugin that supports ``levels`` of a hook works with this core."""
    return levels[0] <= API_LEVELS[hook] <= levels[1]


def _words(levels: Range) -> str:
    return str(levels[0]) if levels[0] == levels[1] else f"{levels[0]} to {levels[1]}"


def _range(value: Any, where: str) -> Range:
    pair = tuple(value) if isinstance(value, tuple | list) else ()
    if len(pair) != 2 or not all(type(each) is int for each in pair) or pair[0] > pair[1]:
        raise ValueError(f"{where} must be (lowest API level, highest), is {value!r}")
    return pair[0], pair[1]


def _bound_names(statement: ast.stmt) -> Iterable[str]:
    """The names that a statement at the top of a module binds."""
    if isinstance(statement, ast.FunctionDef):
        yield statement.name
    elif isinstance(statement, ast.ImportFrom | ast.Import):
        yield from (alias.asname or alias.name for alias in statement.names)
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id


def _literal(value: ast.expr) -> Supports | None:
    try:
        plain = ast.literal_eval(value)
    except ValueError:
        return None  # computed: seen when the module is imported
    return parsed(plain)


def _source(module: str) -> str | None:
    """A module's source; ``None`` if there is no such module or none that can be read."""
    spec = _find(module)
    read = getattr(spec.loader, "get_source", None) if spec is not None else None
    return None if spec is None or read is None else read(spec.name)


def _find(module: str) -> ModuleSpec | None:
    """Like ``importlib.util.find_spec``, which would import the packages around the module. Its name is the last part only."""
    package, *inner = module.split(".")
    spec = find_spec(package)
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # Under its whole name, a folder without __init__.py asks for the package around it, which is not there.
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec
