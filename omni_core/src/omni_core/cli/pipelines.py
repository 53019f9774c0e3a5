"""``omni pipelines``."""

from __future__ import annotations

import click

from omni_core.hookspecs import PipelineComponent
from omni_core.plugins import load_plugins


@click.command()
def pipelines() -> None:
    """List the installed pipelines and their options."""
    found = list(load_plugins().components("omni_pipelines"))
    if not found:
        click.echo("No pipelines are installed. A pipeline comes with its plugin; try: pip install omni-qwen3")
        return
    for component, record in found:
        click.echo(f"{component.name}  ({record.distribution} {record.version})")
        click.echo(f"    {component.summary}")
        if isinstance(component, PipelineComponent):
            for name, text in component.options.items():
                click.echo(f"    --option {name}=...  {text}")
