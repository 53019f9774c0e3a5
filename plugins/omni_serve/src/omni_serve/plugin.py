"""The entry point of omni-serve."""

from __future__ import annotations

from omni_core.api import CommandComponent, Component, ServiceComponent, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the commands by name."""
    return [
        CommandComponent("serve", "omni_serve.cli:serve", "Serve a pipeline to OpenAI's clients.", section="Serve"),
        CommandComponent("keys", "omni_serve.cli:keys", "Make and remove the API keys of a server.", section="Serve"),
        CommandComponent("bench", "omni_serve.bench.cli:bench", "Measure a server.", section="Serve"),
    ]


@hookimpl
def omni_services() -> list[ServiceComponent]:
    """Return the services by slot."""
    about = "tells calls of tools from text, in the formats of models"
    return [ServiceComponent("tool-formats", "omni_serve.tool_formats:tool_reader", about, slot="tool-calls")]
