"""``omni plugins list | show | check | new``."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import click

from omni_core.cli.new import new
from omni_core.hookspecs import API_LEVELS, HOOKS, KernelComponent, works
from omni_core.plugins import PluginRecord, load_plugins
from omni_core.plugins.levels import described


@click.group()
def plugins() -> None:
    """What is installed, what is broken, and why."""


plugins.add_command(new)


@plugins.command("list")
def list_() -> None:
    """Every installed plugin, its state, and what it provides."""
    registry = load_plugins()
    if not registry.records:
        click.echo("No plugins are installed. The core does nothing by itself; try: pip install omni-qwen3")
        return
    width = max(len(record.name) for record in registry.records)
    for record in registry.records:
        origin = f"{record.distribution} {record.version} ({described(record.supports)})"
        click.echo(f"{record.name:{width}}  {record.status.value:12}  {origin}  {record.reason}".rstrip())
        for hook, components in record.components.items():
            click.echo(f"{'':{width}}  {HOOKS[hook]}: {', '.join(component.name for component in components)}")
    for line in registry.duplicates():
        click.echo(f"provided twice, unusable until one is uninstalled or disabled: {line}")


@plugins.command()
@click.argument("name")
def show(name: str) -> None:
    """One plugin in full, with its traceback if it is broken."""
    for record in _named(name):
        click.echo(f"{record.name}: {record.status.value}")
        click.echo(f"  distribution: {record.distribution} {record.version}")
        click.echo(f"  module:       {record.module}")
        click.echo(f"  made for:     {described(record.supports)}")
        if record.reason:
            click.echo(f"  reason:       {record.reason}")
        for hook, components in record.components.items():
            click.echo(f"  {hook} (this core offers API level {API_LEVELS[hook]}):")
            for component in components:
                click.echo(f"    {component.name}  {component.summary}  [{component.target}]")
        if record.traceback:
            click.echo(record.traceback.rstrip())


@plugins.command()
@click.argument("name", required=False)
@click.option(
    "--full", is_flag=True, help="Also run the conformance suites on what is installed (minutes; needs pytest)."
)
def check(name: str | None, full: bool) -> None:
    """Ask every component whether it can work on this machine. Exits with 1 if something is wrong.

    A kernel that can work is compared with its reference on random inputs, in float64, and timed beside it.

    NAME is a plugin; without it, all are asked.
    """
    registry = load_plugins()
    records = _named(name) if name is not None else registry.records
    bad = False
    for hook, component, record, answer in registry.check():
        if record in records:
            click.echo(
                f"{'ok  ' if works(answer) else 'no  '}{HOOKS[hook]} {component.name} ({record.distribution})"
                + (f": {answer}" if answer else "")
            )
            if isinstance(component, KernelComponent) and component.reference and works(answer):
                bad |= not _compare(component)
    for record in records:
        if record.status.value in ("broken", "incompatible"):
            bad = True
            click.echo(f"no  plugin {record.title}: {record.status.value}: {record.reason}")
    for line in registry.duplicates():
        bad = True
        click.echo(f"no  provided twice: {line}")
    if full:
        click.echo("\nconformance suites:")
        bad |= not _check_fully(name)
    sys.exit(1 if bad else 0)


def _compare(component: KernelComponent) -> bool:
    """Say how a kernel compares with its reference; whether it is right."""
    from omni_torch.comparison import compare

    good = True
    try:
        for each in compare(component):
            good &= each.good
            click.echo(f"{'      ' if each.good else 'no    '}{each}")
    except Exception as error:
        click.echo(f"no    it cannot be compared with its reference: {type(error).__name__}: {error}")
        return False
    return good


def _named(name: str) -> list[PluginRecord]:
    registry = load_plugins()
    records = [record for record in registry.records if record.name == name]
    if not records:
        names = ", ".join(record.name for record in registry.records) or "none"
        raise click.ClickException(f"no plugin is called {name!r}; installed are: {names}")
    return records


def _check_fully(name: str | None) -> bool:
    if find_spec("pytest") is None:
        raise click.ClickException("--full runs the conformance suites, which need pytest: pip install omni-testing")
    from omni_testing.checking import check as check_installed

    with os.fdopen(os.dup(1), "w", buffering=1) as out:  # pytest takes standard output while tests run
        return check_installed(name, lambda line: print(line, file=out))
