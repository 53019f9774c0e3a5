"""``omni plugins list | show | check | new``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from shutil import get_terminal_size
from textwrap import wrap

import click

from omni_cli.deploy.source import LayeredSource
from omni_core.api import HOOKS, KernelComponent, PluginRegistry, did_you_mean, load, load_plugins
from omni_core.runtime_api import Defect, PluginFault, PluginRecord, described_levels, isolated, works

_NEEDED = "this needs omni-testing: pip install omni-testing"


class _Group(click.Group):
    """The commands of this file, and ``new``, which is in ``omni_testing``."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted([*super().list_commands(context), "new"])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name != "new":
            return super().get_command(context, name)
        try:
            from omni_testing.authoring.command import new
        except ModuleNotFoundError:
            anything = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
            settings = {"ignore_unknown_options": True}
            return click.Command("new", settings, _refuse, [anything], help=f"Begin a plugin; {_NEEDED}")
        return new


def _refuse(arguments: tuple[str, ...]) -> None:
    raise click.ClickException(_NEEDED)


@click.group(cls=_Group)
def plugins() -> None:
    """Show, check and begin plugins."""


@plugins.command("list")
def list_() -> None:
    """List every installed plugin, its state, and what it provides."""
    registry = load_plugins()
    if not registry.records:
        click.echo("No plugins are installed. The core does nothing by itself; try: pip install omni-qwen3")
        return
    width = max(len(record.name) for record in registry.records)
    for record in registry.records:
        origin = f"{record.distribution} {record.version} ({described_levels(record.levels)})"
        click.echo(f"{record.name:{width}}  {record.status.value:12}  {origin}  {record.reason}".rstrip())
        for defined in record.hooks.values():
            click.echo(f"{'':{width}}  defines the kind: {defined.kind} ({defined.plural}-{defined.level})")
        for hook, components in record.components.items():
            names = f"{registry.hooks[hook].kind}: {', '.join(component.name for component in components)}"
            indent = " " * (width + 2)
            columns = get_terminal_size().columns
            for line in wrap(
                names, columns, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
            ):
                click.echo(line)
        for line in record.warnings:
            click.echo(f"{'':{width}}  warning: {line}")
    for line in clashes(registry):
        click.echo(line)


@plugins.command()
@click.argument("name")
def show(name: str) -> None:
    """Show one plugin in full: what it provides, which stages use it (by omni-testing), and its traceback if it is broken."""
    records, hooks, uses = _named(name), load_plugins().hooks, None
    with suppress(ModuleNotFoundError):
        from omni_testing.uses import Uses

        uses = Uses(load_plugins())
    for record in records:
        click.echo(f"{record.name}: {record.status.value}")
        click.echo(f"  distribution: {record.distribution} {record.version}")
        click.echo(f"  module:       {record.module}, {record.seconds * 1e3:.0f} ms")
        click.echo(f"  made for:     {described_levels(record.levels)}")
        if record.reason:
            click.echo(f"  reason:       {record.reason}")
        for line in record.warnings:
            click.echo(f"  warning:      {line}")
        for defined in record.hooks.values():
            click.echo(f"  defines:      {defined.name}, level {defined.level}")
        for hook, components in record.components.items():
            offered_by = "this core" if hook in HOOKS else "the plugin that defines it"
            click.echo(f"  {hook} ({offered_by} offers API level {hooks[hook].level}):")
            for component in components:
                click.echo(f"    {component.name}  {component.summary}  [{component.target}]")
                if uses is not None and (found := uses.of(hook, component)):
                    click.echo(f"      used by {', '.join(found)}")
        if record.traceback:
            click.echo(record.traceback.rstrip())
    for line in uses.unknown if uses is not None else (f"to see which stages use it: {_NEEDED}",):
        click.echo(line, err=True)


@plugins.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--full", is_flag=True, help="Also run the conformance suites (minutes; needs omni-testing).")
@click.option(
    "--pipeline",
    help="Instead, run this pipeline on its default model once with every tensor between its processes sent by the relay NAME, "
    "and once by shared memory, and compare the results (needs omni-testing).",
)
def check(names: tuple[str, ...], full: bool, pipeline: str | None) -> None:
    """Ask every component whether it can work on this machine. Exits with 1 if a plugin is at fault.

    A kernel that can work is compared with its reference on random inputs, in float64, and timed beside it.

    NAME is a plugin, or a relay with --pipeline; without one, all plugins are asked.
    """
    registry = load_plugins()
    if pipeline is not None:
        sys.exit(0 if _check_relay(names, pipeline, full, registry) else 1)
    names = tuple(dict.fromkeys(names))
    records = [each for name in names for each in _named(name)] if names else registry.records
    bad = False
    for hook, component, record, answer in registry.check():
        if record in records:
            about = f"{registry.hooks[hook].kind} {component.name} ({record.distribution})"
            click.echo(f"{'ok  ' if works(answer) else 'no  '}{about}" + (f": {answer}" if answer else ""))
            bad |= isinstance(answer, Defect)
            if isinstance(component, KernelComponent) and component.reference and works(answer):
                bad |= not _compare(component)
    for record in records:
        if record.status.value in ("broken", "incompatible"):
            bad = True
            click.echo(f"no  plugin {record.title}: {record.status.value}: {record.reason}")
        for line in record.warnings:
            click.echo(f"?   plugin {record.title}: {line}")
    for line in clashes(registry):
        bad = True
        click.echo(f"no  {line}")
    if full:
        click.echo("\nconformance suites:")
        for name in names or (None,):
            bad |= not _check_fully(name)
    sys.exit(1 if bad else 0)


def clashes(registry: PluginRegistry) -> Iterator[str]:
    """Yield a line for each name that is provided twice."""
    for line in registry.duplicates():
        yield f"provided twice, unusable until one is uninstalled or disabled: {line}"


def _compare(component: KernelComponent) -> bool:
    """Print how a kernel compares with its reference; return whether it is right."""
    assert component.reference is not None
    good = True
    try:
        with isolated():
            compare = getattr(load(component.reference), "compare", None)
            results = None if compare is None else list(compare(component))
    except PluginFault as fault:
        click.echo(f"no    it cannot be compared with its reference: {fault}")
        return False
    if results is None:
        click.echo(f"no    it cannot be compared: {component.reference} is no operation (it has no `compare`)")
        return False
    for each in results:
        good &= each.good
        click.echo(f"{'      ' if each.good else 'no    '}{each}")
    return good


def _named(name: str) -> list[PluginRecord]:
    registry = load_plugins()
    records = [record for record in registry.records if record.name == name]
    if not records:
        names = [record.name for record in registry.records]
        raise click.ClickException(f"no plugin is called {name!r}{did_you_mean(name, names, listing='installed are')}")
    return records


def _check_relay(names: tuple[str, ...], pipeline: str, full: bool, registry: PluginRegistry) -> bool:
    if len(names) != 1 or full:
        raise click.UsageError(
            "--pipeline runs one relay: omni plugins check RELAY --pipeline PIPELINE, without --full"
        )
    try:
        from omni_testing.relay_pipeline import check_relay
    except ModuleNotFoundError:
        raise click.ClickException(f"--pipeline compares a relay with shared memory; {_NEEDED}") from None
    registry.resolve_reference("omni_relays", names[0])
    return check_relay(names[0], LayeredSource(pipeline).resolve(registry).config, click.echo)


def _check_fully(name: str | None) -> bool:
    try:
        from omni_testing.checking import check as check_installed
    except ModuleNotFoundError:
        raise click.ClickException(f"--full runs the conformance suites; {_NEEDED}") from None
    with os.fdopen(os.dup(1), "w", buffering=1) as out:  # pytest takes standard output while tests run
        return check_installed(name, lambda line: print(line, file=out))
