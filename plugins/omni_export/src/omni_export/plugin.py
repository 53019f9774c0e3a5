"""The entry point of omni-export."""

from __future__ import annotations

from omni_core.hookspecs import Component, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the command."""
    return [Component("export", "omni_export.command:export", "Write what runs a pipeline in Kubernetes or elsewhere.")]
