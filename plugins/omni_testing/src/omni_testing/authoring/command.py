"""``omni plugins new``: begin a plugin of one's own. The core's command line finds the command here."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from omni_core.api import load_plugins
from omni_testing.authoring.kinds import KINDS
from omni_testing.authoring.names import ProjectNames
from omni_testing.authoring.project import write_project


@click.command()
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(list(KINDS)), required=True, help="The kind of component that the plugin provides."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The project's folder, new or empty. By default NAME, in this folder.",
)
@click.pass_context
def new(context: click.Context, name: str, kind: str, out: Path | None) -> None:
    """Write a complete distribution called NAME: one working component, its conformance tests, packaging and CI.

    The plugin of a distribution omni-relay-file is called relay-file, its component file.
    """
    names = ProjectNames.of(name)
    names.check_free(kind, load_plugins(), _commands(context.find_root()))
    folder = out or Path(names.distribution)
    written = write_project(names, kind, folder)
    click.echo(f"{names.distribution}, a {kind} that works ({KINDS[kind].summary}), in {folder}:")
    for path in written:
        click.echo(f"  {path}")
    click.echo("Next:")
    for step in (f"cd {shlex.quote(str(folder))}", "python -m pip install -e '.[test]'", "python -m pytest"):
        click.echo(f"  {step}")
    click.echo(f"Then make it yours; README.md says where, and how it is used. `omni plugins show {names.plugin}`")


def _commands(root: click.Context) -> list[str]:
    return root.command.list_commands(root) if isinstance(root.command, click.Group) else []
