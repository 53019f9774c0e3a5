"""``omni config show | graph``."""

from __future__ import annotations

from typing import Any

import click

from omni_cli.config.components import component_problems
from omni_cli.config.graph import mermaid, terminal
from omni_cli.deploy.fitting import NamedInFileError, check_placement, gpus_of, placed
from omni_cli.deploy.options import resolve_config
from omni_cli.deploy.override_layers import LayeredConfig
from omni_cli.deploy.writing import dump_json, dump_yaml
from omni_core.api import DoesNotFitError, Machine, PipelineConfig, load_plugins
from omni_core.runtime_api import LazyGroup, with_source


@click.group(cls=LazyGroup)
def config() -> None:
    """Show, check and draw a pipeline's config. PIPELINE is a registered name, a deploy file or preset, a checkpoint folder or a hub id."""


def placed_here(resolved: LayeredConfig) -> PipelineConfig:
    """Return the config with what is chosen for this machine; as it was, with a warning, where it does not fit, or where a file names
    the code that would choose: that runs only with the pipeline.
    """
    config = resolved.config
    try:
        check_placement(resolved)
        return placed(config, Machine(gpus_of(config))).config
    except (DoesNotFitError, NamedInFileError) as error:
        why = ", because it does not fit this machine" if isinstance(error, DoesNotFitError) else ""
        click.echo(f"Warning: left open{why}: {error}", err=True)
        return config


@config.command()
@with_source
@click.option("--format", "form", type=click.Choice(["json", "yaml"]), default="json", show_default=True)
def show(form: str, **source: Any) -> None:
    """Print the resolved config, which every command that takes a pipeline can read again."""
    resolved = resolve_config(**source)
    for line in component_problems(resolved.config, load_plugins()):
        click.echo(f"Warning: {resolved.located(line)}", err=True)
    config = placed_here(resolved)
    click.echo(dump_json(config) if form == "json" else dump_yaml(config).rstrip())


@config.command()
@with_source
@click.option("--format", "form", type=click.Choice(["terminal", "mermaid"]), default="terminal", show_default=True)
def graph(form: str, **source: Any) -> None:
    """Draw the pipeline."""
    resolved = resolve_config(**source)
    click.echo(mermaid(resolved.config) if form == "mermaid" else terminal(resolved.config))
