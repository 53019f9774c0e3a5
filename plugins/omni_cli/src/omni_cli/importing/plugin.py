"""The entry point of omni-cli."""

from __future__ import annotations

from omni_core.hookspecs import Component, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the command."""
    return [Component("import", "omni_cli.importing.command:import_", "Convert a config of vLLM-Omni or SGLang-Omni.")]
