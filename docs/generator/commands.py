"""The page of the command line."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from generator.text import page
from omni_core.cli.main import omni
from omni_core.plugins import load_plugins

ROOT = Path(__file__).parents[2]


def cli_page() -> str:
    parts = [
        "# Command line",
        "`omni COMMAND --help` says the same. `python -m omni_core.cli` is equivalent to `omni`. Results go to standard output, "
        "everything else to standard error.",
        "\n".join(
            [
                "| exit code | |",
                "|---|---|",
                "| 0 | done |",
                "| 1 | an error, on standard error, or with `--json` as a document on standard output; of `omni doctor` and "
                "`omni plugins check`: something needs attention |",
                "| 2 | the command line is wrong |",
                "| 130, 143 | interrupted, terminated |",
            ]
        ),
        "\n".join(
            [
                "| command | |",
                "|---|---|",
                *(
                    f"| [`omni {name}`](#omni-{name}) | {command.get_short_help_str(200)} |"
                    for name, command, _ in commands()
                ),
            ]
        ),
    ]
    for name, command, owner in commands():
        title, text, *rest = command_parts(f"omni {name}", command, 2)
        parts += [title, text if owner is None else f"{text} Comes with `{owner}`.", *rest]
    return page(parts)


def commands() -> list[tuple[str, click.Command, str | None]]:
    """Name, command, and the distribution if it is not the core: all commands of this repository's distributions."""
    projects = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
    ours = {tomllib.loads(path.read_text())["project"]["name"] for path in projects}
    owners = {component.name: record.distribution for component, record in load_plugins().components("omni_commands")}
    context = click.Context(omni)
    found = [(name, omni.get_command(context, name), owners.get(name)) for name in omni.list_commands(context)]
    return [(name, command, owner) for name, command, owner in found if command and (owner is None or owner in ours)]


def command_parts(path: str, command: click.Command, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {path}"
    yield inspect.cleandoc(command.help or "")
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from command_parts(f"{path} {name}", inner, depth + 1)
        return
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    options = [each for each in command.params if isinstance(each, click.Option)]
    names = [each.make_metavar(click.Context(command)) for each in arguments]
    yield f"```\n{' '.join([path, *(['[OPTIONS]'] if options else []), *names])}\n```"
    if options:
        rows = [f"| `{option_form(each)}` | {option_text(each)} |" for each in options]
        yield "\n".join(["| option | |", "|---|---|", *rows])


def option_form(option: click.Option) -> str:
    names = ", ".join(option.opts)
    return names if option.is_flag else f"{names} {option.metavar or value_name(option.type)}"


def value_name(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return " or ".join(map(str, kind.choices))
    if isinstance(kind, click.Path):
        return "PATH"
    return {"integer": "INTEGER", "float": "NUMBER", "text": "TEXT"}[kind.name.removesuffix(" range")]


def option_text(option: click.Option) -> str:
    text = option.help or ""
    return f"{text} By default `{option.default}`.".strip() if option.show_default else text
