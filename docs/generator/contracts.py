"""Pages about classes and functions: the Python interface, the contracts, the conformance suites."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from generator.text import described, page, sections, signature
from omni_core.references import load


def contracts_page(title: str, text: str, groups: dict[str, list[str]]) -> str:
    parts = [f"# {title}", text]
    for heading, references in groups.items():
        parts.append(f"## {heading}")
        for reference in references:
            parts += contract_parts(reference)
    return page(parts)


def contract_parts(reference: str) -> Iterator[str]:
    """One class or function: where it is, its signature and docstring, then its public methods."""
    thing = load(reference)
    module, _, name = reference.partition(":")
    yield f"### {name}"
    found = f"import omni_core as omni  # omni.{name}" if module == "omni_core" else f"from {module} import {name}"
    yield f"```python\n{found}\n```"
    if not inspect.isclass(thing):
        yield f"```python\n{signature(name, thing)}\n```"
        yield described(thing, reference)
        return
    bases = [base.__name__ for base in thing.__bases__ if base.__module__.startswith("omni_") and not _is_part(base)]
    if bases:
        yield f"Subclass of {' and '.join(f'`{base}`' for base in bases)}."
    yield described(thing, reference)
    for member, value in public_members(thing):
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if function is None:
            continue
        yield f"#### {name}.{member}"
        traits = [
            word
            for word, holds in (("abstract", is_abstract(function)), ("property", isinstance(value, property)))
            if holds
        ]
        yield f"```python\n{signature(member, function)}\n```" + (f"\n\n*{', '.join(traits)}*" if traits else "")
        text = inspect.getdoc(function)
        if text:
            yield sections(text)


def _is_part(base: type) -> bool:
    """True for a class that is written for one subclass only."""
    return base.__module__.startswith("omni_testing.relay.")


def is_abstract(function: Any) -> bool:
    """True for a method that an implementation must define."""
    return bool(getattr(function, "__isabstractmethod__", False))


def public_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties in the order of their source: those of a class itself, and those that it inherits of the client or of the
    suite of relays. Tests of a suite are left out.
    """
    inherited = {
        name: value
        for base in cls.__mro__[:0:-1]
        if base.__module__.startswith(("omni_core.client", "omni_testing.relay."))
        for name, value in vars(base).items()
    }
    for member, value in {**inherited, **vars(cls)}.items():
        if member.startswith(("_", "test_")) and member != "__call__":
            continue
        if inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)):
            yield member, value
