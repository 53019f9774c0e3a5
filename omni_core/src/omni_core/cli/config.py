"""``omni config show | validate | graph``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import click
from attrs import asdict

from omni_core.client.source import PipelineSource, parse_options
from omni_core.config.completion import DoesNotFitError, Machine, placed
from omni_core.config.devices import detect
from omni_core.config.graph import mermaid, terminal
from omni_core.config.loading import dump_json, dump_yaml
from omni_core.config.overrides import ResolvedConfig
from omni_core.config.placement import plan
from omni_core.config.schema import PipelineConfig
from omni_core.config.validation import warnings
from omni_core.plugins import load_plugins
from omni_core.references import load

F = TypeVar("F", bound=Callable[..., None])


@click.group()
def config() -> None:
    """Show, check and draw a pipeline's config. PIPELINE is a registered name, a checkpoint folder, a hub id or a config file."""


def resolve_config(
    pipeline: str, model: str | None, option: tuple[str, ...], settings: tuple[str, ...], overlay: str | None
) -> ResolvedConfig:
    """Return the config that the options of :func:`with_source` describe; notices go to standard error."""
    source = PipelineSource(pipeline, model, parse_options(option), settings, overlay)
    resolved = source.resolve()
    for notice in source.notices:
        click.echo(notice, err=True)
    return resolved


def _placed_here(config: PipelineConfig) -> PipelineConfig:
    """Return the config with what is chosen for this machine; where it does not fit, as it was, with a warning."""
    try:
        return placed(config, Machine(detect())).config
    except DoesNotFitError as error:
        click.echo(f"Warning: left open, because it does not fit this machine: {error}", err=True)
        return config


def _completed(name: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """Return the completion of a value in a shell: a function of omni-terminal, if that is installed."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
        items: list[Any] = []
        with suppress(Exception):  # a traceback would spoil the line that is being typed
            items = load(f"omni_terminal.completion:{name}")(context, begun)
        return items

    return complete


_OPTION: dict[str, Any] = {
    "multiple": True,
    "metavar": "NAME=VALUE",
    "help": "A pipeline's option; see `omni pipelines`.",
}
_SETTING: dict[str, Any] = {"multiple": True, "metavar": "STAGE.FIELD=VALUE", "help": "Override one field."}
_source: list[Callable[[Any], Any]] = [
    click.argument("pipeline", shell_complete=_completed("pipeline")),
    click.option("--model", help="A checkpoint folder or hub id.", shell_complete=_completed("model")),
    click.option("--option", shell_complete=_completed("option"), **_OPTION),
    click.option("--set", "settings", shell_complete=_completed("setting"), **_SETTING),
    click.option("--config", "overlay", type=click.Path(exists=True, dir_okay=False), help="A YAML overlay."),
]


def with_source(function: F) -> F:
    """Add the options that choose a pipeline, the same on every command that takes one."""
    for decorator in reversed(_source):
        function = decorator(function)
    return function


@config.command()
@with_source
@click.option("--provenance", is_flag=True, help="Show the origin of every override instead.")
@click.option("--format", "form", type=click.Choice(["json", "yaml"]), default="json", show_default=True)
def show(provenance: bool, form: str, **source: Any) -> None:
    """Print the resolved config, which `omni run` can read again."""
    resolved = resolve_config(**source)
    config = _placed_here(resolved.config)
    if not provenance:
        click.echo(dump_json(config) if form == "json" else dump_yaml(config).rstrip())
        return
    for path, (origin, before, now) in resolved.provenance.items():
        click.echo(f"{path}: {before!r} -> {now!r}  ({origin})")
    for before, now in zip(resolved.config.stages, config.stages, strict=True):
        for name, value in asdict(now, recurse=False).items():
            if value != getattr(before, name):
                click.echo(f"{now.name}.{name}: {getattr(before, name)!r} -> {value!r}  (chosen for this machine)")
    if not resolved.provenance and config == resolved.config:
        click.echo("No overrides.")


@config.command()
@with_source
def validate(**source: Any) -> None:
    """Check a config, and that the components that it names are installed, without starting anything."""
    from omni_core.launch.prepare import check_components  # imports the runtime, which the other commands do without

    resolved = resolve_config(**source)
    check_components(resolved.config, load_plugins())
    stages = resolved.config.stages
    processes = plan(_placed_here(resolved.config))
    for line in warnings(resolved.config):
        click.echo(f"Warning: {line}", err=True)
    click.echo(f"{resolved.config.resolved_name}: {len(stages)} stages in {len(processes)} processes, valid")


@config.command()
@with_source
@click.option("--format", "form", type=click.Choice(["terminal", "mermaid"]), default="terminal", show_default=True)
def graph(form: str, **source: Any) -> None:
    """Draw the pipeline."""
    resolved = resolve_config(**source)
    click.echo(mermaid(resolved.config) if form == "mermaid" else terminal(resolved.config))
