"""``omni plugins new``: begin a plugin of one's own. The templates are in ``omni_testing``, which is imported when they are used."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from omni_core.plugins import load_plugins


@contextlib.contextmanager
def testing_is_needed(why: str) -> Iterator[None]:
    """Turn an import of ``omni_testing`` or pytest that fails into an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("omni_testing", "pytest"):
            raise
        raise click.ClickException(
            f"{why}, which need omni-testing ({missing} is missing): pip install omni-testing"
        ) from None


def _kind(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Check the kind of template; which there are is known once ``omni_testing`` is imported."""
    with testing_is_needed("new plugins are written from templates"):
        from omni_testing.authoring import KINDS

    return str(click.Choice(list(KINDS)).convert(value, parameter, context))


@click.command()
@click.argument("name")
@click.option(
    "--kind",
    callback=_kind,
    required=True,
    help="What the plugin provides: relay, scheduler, pipeline, model-runner, feedback, projection, kernel or command.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The project's folder, new or empty. By default NAME, in this folder.",
)
@click.pass_context
def new(context: click.Context, name: str, kind: str, out: Path | None) -> None:
    """Write a complete distribution called NAME: one working component, its conformance tests, packaging and CI.

    A component of the distribution omni-relay-file is called file, and its plugin relay-file.
    """
    from omni_testing.authoring import KINDS, ProjectNames, write_project

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
