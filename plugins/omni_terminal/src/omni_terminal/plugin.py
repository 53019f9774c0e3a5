"""The entry point of omni-terminal."""

from __future__ import annotations

from omni_core.hookspecs import Component, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the commands by name."""
    return [
        Component("batch", "omni_terminal.batch.command:batch", "Answer a file of requests."),
        Component("chat", "omni_terminal.chat.command:chat", "Chat with a pipeline."),
        Component(
            "doctor", "omni_terminal.doctor:doctor", "Look at this machine and the installation, and say what to do."
        ),
        Component("ps", "omni_terminal.ps:ps", "List the running pipelines."),
        Component("stop", "omni_terminal.ps:stop", "End a running pipeline in order."),
        Component("top", "omni_terminal.top:top", "Watch a running pipeline."),
    ]
