"""The entry point of omni-terminal."""

from __future__ import annotations

from omni_core.hookspecs import Component, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the commands by name."""
    return [
        Component("batch", "omni_terminal.batch.command:batch", "Answer a file of requests."),
        Component("chat", "omni_terminal.chat.command:chat", "Chat with a pipeline."),
        Component("config", "omni_terminal.config.command:config", "Show, check and draw a pipeline's config."),
        Component("config diff", "omni_terminal.config.diff:diff", "Show in what two configs differ."),
        Component("config explain", "omni_terminal.config.explain:explain", "Show where each value comes from."),
        Component(
            "config init", "omni_terminal.config.init:init", "Write a deploy file with everything that can be set."
        ),
        Component(
            "config validate", "omni_terminal.config.validate:validate", "Find everything that is wrong with a config."
        ),
        Component(
            "doctor", "omni_terminal.doctor:doctor", "Look at this machine and the installation, and say what to do."
        ),
        Component("pipelines", "omni_terminal.pipelines:pipelines", "List the installed pipelines."),
        Component("plan", "omni_terminal.plan:plan", "Show which process and device each stage gets, and if it fits."),
        Component("plugins", "omni_terminal.plugins:plugins", "Show, check and begin plugins."),
        Component("profile", "omni_terminal.profile:profile", "Record where a running pipeline's time goes."),
        Component("ps", "omni_terminal.ps:ps", "List the running pipelines."),
        Component("run", "omni_terminal.request.run:run", "Run a pipeline: one request, or a chat."),
        Component("stage", "omni_terminal.stage:stage", "Replace or scale a stage of a running pipeline."),
        Component("stop", "omni_terminal.ps:stop", "End a running pipeline in order."),
        Component("top", "omni_terminal.top:top", "Watch a running pipeline."),
    ]
