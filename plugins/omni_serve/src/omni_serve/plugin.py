"""The entry point of omni-serve."""

from __future__ import annotations

from omni_core.api import CommandComponent, Component, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the commands by name."""
    return [
        CommandComponent("serve", "omni_serve.cli:serve", "Serve a pipeline to OpenAI's clients.", section="Serve"),
        CommandComponent("keys", "omni_serve.cli:keys", "Make and remove the API keys of a server.", section="Serve"),
        CommandComponent("bench", "omni_serve.bench.cli:bench", "Measure a server.", section="Serve"),
    ]
