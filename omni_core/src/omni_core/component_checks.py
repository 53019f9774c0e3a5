"""Probes and slots, and checks of their values, so that a mistake is named where it was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from attrs import AttrsInstance, fields

from omni_core.errors import ConfigError
from omni_core.references import normalize


class ProbeWarning(str):
    """A probe's answer for a component that can work on this machine, but not as well as on others: what is missing."""

    __slots__ = ()


Probe = Callable[[], str | None]
"""Says cheaply whether a component can work on this machine: ``None`` or a :class:`ProbeWarning` if so, else the reason why not."""


def works(answer: str | None) -> bool:
    """Return whether a probe's answer means that the component can work here."""
    return answer is None or isinstance(answer, ProbeWarning)


SlotName = Literal[
    "admission", "fitting", "fork-server", "imports", "kernels", "limits", "media", "mutation-seal", "operations", "profiles", "ranks",
    "shell-completion", "sources", "stage-process", "telemetry", "tool-calls",
]  # fmt: skip
"""The slots of services; :mod:`omni_core.services` says what fills each."""


def _strings(value: Any) -> bool:
    return all(isinstance(each, str) for each in value)


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda value: isinstance(value, str), "a string"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (lambda value: type(value) is int, "a whole number"),
    "tuple[str, ...]": (lambda value: isinstance(value, tuple | list) and _strings(value), "a tuple of strings"),
    "dict[str, str]": (lambda each: isinstance(each, dict) and _strings([*each, *each.values()]), "a dict of strings"),
    "Probe | None": (lambda value: value is None or callable(value), "a function without arguments, or None"),
    "SlotName": (lambda value: value in get_args(SlotName), "a slot of omni_core.services"),
    "Reference": (lambda value: isinstance(value, str), '"package.module:attribute"'),
    "Reference | None": (lambda value: value is None or isinstance(value, str), '"package.module:attribute", or None'),
}
"""By the annotation of a component's field: a test of its value, and the words for what it must be."""


def check_fields(component: AttrsInstance, name: str) -> None:
    """Check every field of a component against its annotation.

    Raises:
        TypeError: a field has a value of another type.
        ConfigError: a reference is not of the form ``package.module:attribute``.
    """
    what = f"{type(component).__name__} {name!r}"
    for attribute in fields(type(component)):
        value, kind = getattr(component, attribute.name), str(attribute.type)
        good, expected = _CHECKS.get(kind, (lambda value: True, ""))
        if not good(value):
            raise TypeError(f"{what}: {attribute.name} must be {expected}, is {value!r}")
        if kind.startswith("Reference") and value is not None:
            try:
                normalize(value)
            except ConfigError as error:
                raise ConfigError(f"{what}: {attribute.name}: {error}") from None
