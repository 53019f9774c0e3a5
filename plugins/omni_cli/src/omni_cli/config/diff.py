"""``omni config diff A B``: the values in which two configs differ, each with where it was written."""

from __future__ import annotations

import sys
from typing import Any

import click

from omni_cli.config.values import MISSING, by_path, is_within, shown
from omni_cli.deploy.options import resolve_config
from omni_cli.deploy.override_layers import LayeredConfig
from omni_core.runtime_api import source_options, unstructure


@click.command()
@click.argument("a")
@click.argument("b")
@source_options
def diff(a: str, b: str, **options: Any) -> None:
    """Show every value in which the pipelines or deploy files A and B differ. The options are for both. Exit code 1: they differ."""
    first, second = (resolve_config(pipeline=each, **options) for each in (a, b))
    lines = differences(first, second)
    for line in lines:
        click.echo(line)
    if not lines:
        click.echo(f"{a} and {b} are equal.", err=True)
    sys.exit(1 if lines else 0)


def differences(first: LayeredConfig, second: LayeredConfig) -> list[str]:
    """Return a line for each value that differs: its path, and on both sides the value and its origin."""
    one, other = by_path(unstructure(first.config)), by_path(unstructure(second.config))
    return [
        f"{path}: {_side(first, path, one.get(path, MISSING))} -> {_side(second, path, other.get(path, MISSING))}"
        for path in dict.fromkeys([*one, *other])
        if one.get(path, MISSING) != other.get(path, MISSING)
    ]


def _side(resolved: LayeredConfig, path: str, value: Any) -> str:
    if value is MISSING:
        return "not set"
    own = resolved.origins.get(path, "pipeline")
    origin = next((each[0] for known, each in resolved.provenance.items() if is_within(path, known)), own)
    return f"{shown(value)} ({origin})"
