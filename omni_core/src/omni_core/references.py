"""Dotted references: ``package.module:attribute`` (or ``package.module.attribute``), imported only where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from omni_core.errors import ConfigError


def normalize(reference: str) -> str:
    """The ``module:attribute`` form of a dotted reference.

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
        ConfigError: the module has no such attribute. ImportError: the module cannot be imported.
    """
    module_name, _, attribute = normalize(reference).partition(":")
    value: Any = importlib.import_module(module_name)
    for name in attribute.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise ConfigError(f"{reference!r}: module {module_name!r} has no attribute {attribute!r}") from None
    return value
