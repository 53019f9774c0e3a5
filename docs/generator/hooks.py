"""The page of the hooks."""

from __future__ import annotations

import inspect
from typing import Any

from generator.text import constants, field_table, markdown, page, prose
from omni_core import component_checks, hookspecs, services


def hooks_page() -> str:
    summary, _, rest = (inspect.getdoc(hookspecs) or "").partition("\n\n")
    documented = {name: (value, text) for name, value, text in constants(component_checks)}
    hooks = {name: each.specification for name, each in hookspecs.HOOKS.items()}
    parts = [
        "# Plugin hooks",
        f"{markdown(summary)} In the code it is `omni_core/hookspecs.py`. [Writing a plugin](../plugins.md) shows how to begin.",
        markdown(rest, "text"),
        "## API level",
        "The contract of every kind of hook has a level. The entry point of a plugin names the levels that it works with, "
        '`my-relay = "my_relay.plugin [relays-1]"`; they are read before its module is imported. '
        "One for which this core is too old or too new is not imported; `omni plugins list` says which of the two to upgrade.",
        "## Hooks",
        "\n".join(
            [
                "| hook | a component is a | level | returns |",
                "|---|---|---|---|",
                *(
                    f"| [`{name}`](#{name}) | {each.kind} | `{each.plural}-{each.level}` | `{return_type(hooks[name])}` |"
                    for name, each in hookspecs.HOOKS.items()
                ),
            ]
        ),
    ]
    for name, function in hooks.items():
        signature = str(inspect.signature(function)).replace("'", "")
        parts += [f"### {name}", f"```python\ndef {name}{signature}: ...\n```", prose(function)]
    parts.append("## Components")
    for cls in (hookspecs.Component, *subclasses(hookspecs.Component)):
        base = cls.__mro__[1]
        parts += [f"### {cls.__name__}", prose(cls)]
        if base is not object:
            parts.append(f"A `{base.__name__}` with further fields, which are given by name.")
        parts.append(field_table(cls))
    parts.append(f"`Probe = {probe_type()}`: {markdown(documented['Probe'][1])}")
    parts += ["## Slots of services", markdown((inspect.getdoc(services) or "").partition("\n\n")[2]), slot_table()]
    return page(parts)


def slot_table() -> str:
    """Return a table of the slots: what the target of a service must be, and what it is for."""
    targets = services.__annotations__
    rows = [
        f"| `{value.name}` | `{targets[name].removeprefix('Slot[').removesuffix(']')}` | {markdown(text)} |"
        for name, value, text in constants(services)
        if isinstance(value, services.Slot)
    ]
    imports = next(text for name, _, text in constants(services) if name == "IMPORTS")
    rows.append(f"| `{services.IMPORTS}` | `Mapping[str, str]` | {markdown(imports)} |")
    return "\n".join(["| slot | target | |", "|---|---|---|", *(row.replace("\n", " ") for row in sorted(rows))])


def return_type(function: Any) -> str:
    return str(function.__annotations__["return"])


def subclasses(cls: type) -> list[type]:
    own = (each for each in cls.__subclasses__() if each.__module__ == cls.__module__)  # not those of plugins
    return sorted(own, key=lambda each: each.__name__)


def probe_type() -> str:
    return str(hookspecs.Probe).replace("collections.abc.", "")
