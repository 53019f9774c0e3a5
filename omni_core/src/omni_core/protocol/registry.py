"""The classes whose instances the codec sends: :func:`register` and :func:`message`, decorators where a class is defined."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

import attrs

T = TypeVar("T", bound=type)

classes: dict[str, tuple[Callable[..., Any], int]] = {}
"""Wire name to a function that makes an instance of the values of its fields, in the order in which they travel, and their number."""

names: dict[type, tuple[str, tuple[str, ...]]] = {}
"""Class to its wire name and the names of its fields."""

values: dict[type, Callable[[Any], tuple[Any, ...]]] = {}
"""Class to a function that gives the values of an instance's fields."""


def register(cls: T) -> T:
    """Let instances of an attrs class travel. Sender and receiver must both have imported the module that registers it.

    The wire name is the class's module and qualified name; fields travel by position.

    Raises:
        TypeError: ``cls`` is no attrs class.
    """
    registered = cls
    if not attrs.has(cls):
        raise TypeError(f"{cls!r} is not an attrs class and cannot be registered with the codec")
    fields = tuple(attribute.name for attribute in attrs.fields(cls) if attribute.init)
    name = f"{cls.__module__}.{cls.__qualname__}"
    classes[name] = (_maker(cls), len(fields))
    names[cls] = (name, fields)
    values[cls] = (
        attrgetter(*fields) if len(fields) > 1 else lambda instance: tuple(getattr(instance, f) for f in fields)
    )
    return registered


@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def message(cls: T) -> T:
    """Make a frozen attrs class, and let its instances travel."""
    return register(attrs.frozen(cls))


def _maker(cls: type) -> Callable[..., Any]:
    """A function of a class's field values by position: the class itself, unless some of its fields are keyword-only."""
    given = [attribute for attribute in attrs.fields(cls) if attribute.init]
    if not any(attribute.kw_only for attribute in given):
        return cls
    keywords = [attribute.alias for attribute in given]
    return lambda *values: cls(**dict(zip(keywords, values, strict=True)))
