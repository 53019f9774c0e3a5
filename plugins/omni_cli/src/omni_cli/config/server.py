"""The sections of a deploy file that other distributions read: ``server``, for ``omni serve``, and ``admission``."""

from __future__ import annotations

from collections.abc import Iterator

import click

from omni_core.api import OmniError, PipelineConfig
from omni_core.runtime_api import ADMISSION


def serve_command(context: click.Context) -> click.Command | None:
    """Return ``omni serve``; ``None`` if no plugin provides it."""
    root = context.find_root().command
    if not isinstance(root, click.Group) or "serve" not in root.list_commands(context):
        return None
    return root.get_command(context, "serve")


def flags(serve: click.Command) -> dict[str, click.Option]:
    """Return the options that the section may set, by key."""
    from omni_serve import section  # there, because there is the command

    return section.flags(serve)


def server_problems(config: PipelineConfig, serve: click.Command | None) -> Iterator[str]:
    """Yield a line for each problem of the section."""
    if config.server and serve is None:
        yield "server: nothing reads it here: pip install omni-serve"
    elif serve is not None:
        from omni_serve.section import section_problems

        yield from section_problems(serve, "server", config.server)


def admission_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield a line for the first problem of the section ``admission``."""
    if config.admission:
        try:
            ADMISSION.need("`admission` needs")(config)
        except OmniError as error:
            yield str(error)
