"""The section of a deploy file whose keys are the flags of a command: ``server`` and those of ``omni serve``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import click

from omni_core.api import ConfigError, did_you_mean
from omni_core.runtime_api import ENDPOINT_OPTIONS, SOURCE_OPTIONS, set_log_options


def flags(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command that a section may set, by key: the flag with ``_`` in place of dashes."""
    others = (*SOURCE_OPTIONS, *ENDPOINT_OPTIONS)
    options = [each for each in command.params if isinstance(each, click.Option) and each.name not in others]
    return {max(each.opts, key=len).lstrip("-").replace("-", "_"): each for each in options}


def with_section(context: click.Context, section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a command with those of a section in place of defaults; flags and variables win.

    Raises:
        ConfigError: a line for each value that the command does not take.
    """
    problems = list(section_problems(context.command, section, values))
    if problems:
        raise ConfigError("\n".join(problems))
    given = {**context.params}
    for key, option in flags(context.command).items():
        source = context.get_parameter_source(str(option.name))
        if key in values and source in (click.core.ParameterSource.DEFAULT, None):
            given[str(option.name)] = _converted(option, values[key], context)
    return given


def apply_log_options(context: click.Context, given: Mapping[str, Any]) -> None:
    """Set up logging by what a section says of it; flags and variables, also those of the group, win."""
    default = (click.core.ParameterSource.DEFAULT, None)
    parents = (context.parent,) if context.parent is not None else ()
    said = {
        name: given[name]
        for name in ("log_level", "log_format")
        if given.get(name) and all(each.get_parameter_source(name) in default for each in parents)
    }
    if said:
        set_log_options(context, said)


def section_problems(command: click.Command, section: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each value of a section that the command does not take."""
    known, context = flags(command), click.Context(command)
    for key, value in values.items():
        where = f"{section}.{key}"
        if key not in known:
            yield f"{where}: unknown key{did_you_mean(key, known)}"
        elif known[key].envvar:
            yield f"{where}: is no part of a file, which others may read; set the variable {known[key].envvar}"
        else:
            try:
                _converted(known[key], value, context)
            except click.BadParameter as error:
                yield f"{where}: {error.message}"


def _converted(option: click.Option, value: Any, context: click.Context) -> Any:
    """Return a value of a file as the command gets it. Raises click.BadParameter."""
    if option.multiple and isinstance(value, dict):
        value = [f"{name}={_text(each, name)}" for name, each in value.items()]
    if option.is_flag != isinstance(value, bool):
        expected = "must be true or false" if option.is_flag else "must be a value"
        raise click.BadParameter(f"{expected}, is {value!r}")
    if option.multiple != isinstance(value, list) or isinstance(value, dict):
        raise click.BadParameter(f"must be {'a list' if option.multiple else 'one value'}, is {value!r}")
    if value is None or option.is_flag:
        return value
    return option.type_cast_value(context, [_text(each) for each in value] if isinstance(value, list) else _text(value))


def _text(value: Any, name: str | None = None) -> str:
    """Return a value as it would be written on the command line; ``name``: of a part. Raises click.BadParameter."""
    if isinstance(value, float) and not isfinite(value):
        raise click.BadParameter(f"must be finite, is {value!r}")
    if not isinstance(value, str | int | float) or (name is None and isinstance(value, bool)):
        part = "" if name is None else f"{name} "
        raise click.BadParameter(f"{part}must be a text or a number, is {value!r}")
    return str(value)
