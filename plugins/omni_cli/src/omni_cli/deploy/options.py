"""The config that the options of a command mean (see :func:`omni_core.cli.source.with_source`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from omni_cli.deploy.override_layers import LayeredConfig
from omni_cli.deploy.source import LayeredSource
from omni_core.runtime_api import SOURCE_OPTIONS, parse_options


def source_of(options: Mapping[str, Any], platform: str | None = None) -> LayeredSource:
    """Return the pipeline that the options of a command name."""
    model, option, settings, overlay = (options[each] for each in SOURCE_OPTIONS)
    return LayeredSource(options["pipeline"], model, parse_options(option), settings, overlay, platform=platform)


def resolve_config(platform: str | None = None, **options: Any) -> LayeredConfig:
    """Return the config that the options of a command describe; notices go to standard error."""
    source = source_of(options, platform)
    resolved = source.resolve()
    for notice in source.notices:
        click.echo(notice, err=True)
    return resolved
