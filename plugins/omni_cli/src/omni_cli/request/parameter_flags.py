"""Flags of a command made from a pipeline's interface: ``--temperature``, ``--GROUP-temperature``, ``--speaker``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import click

from omni_core.api import SEED, Interface, InvalidRequestError, Parameter
from omni_core.runtime_api import set_at

GIVEN = "omni_cli.given"
"""Key of ``click.Context.meta``: what flags have set, as ``{"params": ..., "metadata": ...}``."""


class SectionOption(click.Option):
    """An option that ``--help`` lists under a heading of its own."""

    def __init__(self, *arguments: Any, section: str = "Options", **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.section = section


def parameter_flags(interface: Interface, taken: set[str]) -> Iterator[SectionOption]:
    """Yield the options of an interface. What has a name in ``taken`` gets none: it is set by ``--param`` or ``--metadata``."""
    plain = interface.plain_group
    shared = [each for group in interface.groups for each in group.parameters if each.name == SEED][:1]
    specific = [each for each in plain.parameters if each.name != SEED] if plain is not None else []
    own = f"Parameters ({plain.name}: {plain.help})" if plain is not None else "Parameters"
    wanted: list[tuple[tuple[str, ...], Parameter, str, bool]] = []
    wanted += [(("params",), each, own, False) for each in (*specific, *shared)]
    for group in interface.groups:
        heading = f"Parameters of the {group.name} ({group.help})"
        wanted += [(("params", group.name), each, heading, group is plain) for each in group.parameters]
    wanted += [(("params",), each, "Further parameters", False) for each in interface.params]
    wanted += [(("metadata",), each, "Further parameters", False) for each in interface.metadata]
    for where, parameter, heading, hidden in wanted:
        names = ["-".join([*where[1:], each]) for each in (*parameter.aliases, parameter.name)]
        flags = [each for each in ("--" + name.replace("_", "-") for name in names) if each not in taken]
        if flags and parameter.type not in ("integers", "mapping"):
            taken.update(flags)
            yield _option(flags, (*where, parameter.name), parameter, section=heading, hidden=hidden)


def _option(flags: list[str], path: tuple[str, ...], parameter: Parameter, **attributes: Any) -> SectionOption:
    def store(context: click.Context, option: click.Parameter, value: Any) -> None:
        if value not in (None, False, ()):
            set_at(context.meta.setdefault(GIVEN, {}), path, _value(parameter, value), flags[0])

    if parameter.type == "boolean":
        attributes |= {"is_flag": True}
    else:
        metavar = {"string": "text", "strings": "text"}.get(parameter.type, parameter.type).upper()
        attributes |= {"metavar": metavar, "multiple": parameter.type == "strings"}
    return SectionOption(flags, help=_help(parameter), callback=store, expose_value=False, **attributes)


def _value(parameter: Parameter, given: Any) -> Any:
    """Return the value that a flag's text means.

    Raises:
        click.BadParameter: it is none that the parameter may have.
    """
    value = list(given) if isinstance(given, tuple) else given
    for kind in {"integer": (int,), "number": (int, float)}.get(parameter.type, ()):
        with suppress(ValueError):
            value = kind(given)
            break
    try:
        return parameter.check(value, "")
    except InvalidRequestError:
        raise click.BadParameter(f"must be {parameter.expected}, is {given!r}") from None


def _help(parameter: Parameter) -> str:
    bounds = ", ".join(parameter.choices) or (parameter.bounds if parameter.type in ("number", "integer") else "")
    default = "" if parameter.default is None or parameter.type == "boolean" else f"default {parameter.default}"
    notes = "; ".join(each for each in (bounds, default) if each)
    return parameter.help[:1].upper() + parameter.help[1:] + (f"  [{notes}]" if notes else ".")
