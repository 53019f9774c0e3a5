"""Dotted references: ``package.module:attribute`` (or ``package.module.attribute``), imported only where they are used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from os import fspath
from symtable import symtable
from typing import Any

from omni_core.elsewhere import NAMES
from omni_core.errors import ConfigError, did_you_mean


def normalize(reference: str) -> str:
    """Return the ``module:attribute`` form of a dotted reference.

    Raises:
        ConfigError: it is no dotted reference.
    """
    if ":" in reference:
        module, _, attribute = reference.partition(":")
    else:
        module, _, attribute = reference.rpartition(".")
    names = [*module.split("."), *attribute.split(".")]
    if not all(name.isidentifier() for name in names):
        raise ConfigError(f"{reference!r} is not a reference of the form 'package.module:attribute'")
    return f"{module}:{attribute}"


def load(reference: str) -> Any:
    """Import what ``reference`` names.

    Raises:
        ConfigError: there is no such module, or it has no such attribute. ImportError: the module itself fails to import another one.
    """
    module_name, _, attribute = normalize(reference).partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"{reference!r}: module {module_name!r} does not exist") from None
    for name in attribute.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            nearest = did_you_mean(name, [each for each in dir(value) if not each.startswith("_")])
            raise ConfigError(
                f"{reference!r}: module {module_name!r} has no attribute {attribute!r}{nearest}"
            ) from None
    return value


def exports(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose names are imported from others when they are first asked for.

    Args:
        module: the name of the module.
        homes: by module, the names that come from it, with spaces between.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in NAMES:  # of an AttributeError, `from module import name` would show nothing
            raise ImportError(f"cannot import {name!r} from {module!r}{did_you_mean(name, home_of)}")
        if name not in home_of:
            # Python asks for `__path__` at each import from a module.
            nearest = "" if name.startswith("__") else did_you_mean(name, home_of)
            raise AttributeError(f"module {module!r} has no attribute {name!r}{nearest}")
        value = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return get


def imported(name: str) -> Any:
    """Return a module if it is imported, else ``None``; also while another thread imports it: it is in ``sys.modules`` half made then."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def reference_problem(reference: str) -> str | None:
    """Return why ``reference`` cannot be resolved, as far as sources show it, or ``None``. Nothing is imported.

    What a module defines is read from its source; one without source, with ``__getattr__``, ``globals()`` or ``from x import *`` may
    define any name.
    """
    module = normalize(reference).partition(":")[0]
    if find_module(module) is None and module not in sys.modules:
        return f"module {module!r} does not exist"
    return attribute_problem(reference)


def attribute_problem(reference: str) -> str | None:
    """Return why the module of ``reference`` lacks its attribute, as :func:`reference_problem`; ``None`` where there is no such module."""
    module, _, attribute = normalize(reference).partition(":")
    spec = find_module(module)
    if spec is None:
        return None
    read = getattr(spec.loader, "get_source", None)
    source = None if read is None else read(spec.name)
    if source is None:
        return None
    try:
        symbols = symtable(source, spec.name, "exec").get_symbols()
    except SyntaxError as error:
        return f"{error.msg} ({spec.origin}, line {error.lineno})"
    names = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
    first = attribute.partition(".")[0]
    if first in names or "__getattr__" in names or "globals()" in source or "import *" in source:
        return None
    return f"module {module!r} has no attribute {first!r}{did_you_mean(first, sorted(names))}"


def find_module(module: str) -> ModuleSpec | None:
    """Find a module as ``importlib.util.find_spec`` does, without importing the packages around it."""
    package, *inner = module.split(".")
    try:
        spec = find_spec(package)
    except ValueError:  # a module that was made by hand has no spec
        return None
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # Under its whole name, a folder without __init__.py asks for the package around it, which is not there. Some packages have paths
        # among their locations, which the finder ignores.
        spec = PathFinder.find_spec(name, [*map(fspath, spec.submodule_search_locations)])
    return spec
