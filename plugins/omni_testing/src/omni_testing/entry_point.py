"""The entry point of omni-testing."""

from __future__ import annotations

from omni_core.api import CommandComponent, Component, ServiceComponent, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the command that writes checkpoints."""
    summary = "Write a tiny checkpoint of one of our models with random weights."
    return [
        CommandComponent("tiny-checkpoint", "omni_testing.tiny.command:tiny_checkpoint", summary, section="Develop")
    ]


@hookimpl
def omni_services() -> list[ServiceComponent]:
    """Return the check for ``OMNI_CHECK_MUTATION=1``."""
    return [ServiceComponent("digests", "omni_testing.mutation:seal", "finds changed payloads", slot="mutation-seal")]
