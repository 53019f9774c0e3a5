"""Exceptions of classes that run code of their own wherever they are looked at."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest


def _exits(*_: Any) -> Any:
    raise SystemExit(3)


def _interrupts(*_: Any) -> Any:
    raise KeyboardInterrupt


def _recurses(*_: Any) -> Any:
    return _recurses()


def _hostile(name: str, code: Callable[..., Any]) -> BaseException:
    where, _, attribute = name.partition(" ")
    bases, value = (Exception,), property(code) if where == "property" else code
    if where == "metaclass":
        meta: Any = type("Meta", (type,), {attribute: value})
        error = BaseException.__new__(meta("Hostile", bases, {}), "text")
    else:
        error = BaseException.__new__(type("Hostile", bases, {attribute: value}), "text")
    return error


_NAMES = [
    "property __class__",
    "property __traceback__",
    "property __cause__",
    "method __getattribute__",
    "method __str__",
]
_NAMES += [f"metaclass {each}" for each in ("__hash__", "__eq__", "__instancecheck__", "__getattribute__")]


@pytest.fixture(
    params=product(_NAMES, (_exits, _interrupts, _recurses)), ids=lambda kind: f"{kind[0]} {kind[1].__name__}"
)
def hostile(request: pytest.FixtureRequest) -> BaseException:
    """Make an exception named ``Hostile`` whose class raises where it is asked for something."""
    return _hostile(*request.param)
