"""The entry point of omni-capsules."""

from __future__ import annotations

from omni_core.hookspecs import Component, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the commands by name."""
    return [Component("replay", "omni_capsules.command:replay", "Run one stage again from the capsule of a request.")]
