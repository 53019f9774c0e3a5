"""Registers the commands about checkpoints that every model shares."""

from __future__ import annotations

from omni_core.hookspecs import Component, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the commands by name."""
    return [
        Component(
            "cache",
            "omni_torch.checkpoints.cache_command:cache",
            "List or remove the prepared weights that later starts map.",
        ),
        Component("pull", "omni_torch.checkpoints.pull:pull", "Download a checkpoint from the hub."),
    ]
