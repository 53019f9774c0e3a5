"""The entry point of omni-serve."""

from __future__ import annotations

from omni_core.api import Component, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the commands by name."""
    return [
        Component("serve", "omni_serve.cli:serve", "Serve a pipeline to OpenAI's clients."),
        Component("keys", "omni_serve.cli:keys", "Make and remove the API keys of a server."),
        Component("bench", "omni_serve.bench.cli:bench", "Measure a server."),
    ]
