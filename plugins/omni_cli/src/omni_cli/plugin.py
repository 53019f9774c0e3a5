"""Registers the commands, and what the runtime can do for people."""

from __future__ import annotations

from omni_core.api import CommandComponent, Component, ServiceComponent, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the commands by name."""
    return [
        CommandComponent("batch", "omni_cli.batch.command:batch", "Answer a file of requests.", section="Run"),
        CommandComponent("chat", "omni_cli.chat.command:chat", "Chat with a pipeline.", section="Run"),
        CommandComponent(
            "config", "omni_cli.config.command:config", "Show, check and draw a pipeline's config.", section="Prepare"
        ),
        Component("config diff", "omni_cli.config.diff:diff", "Show in what two configs differ."),
        Component("config explain", "omni_cli.config.explain:explain", "Show where each value comes from."),
        Component("config init", "omni_cli.config.init:init", "Write a deploy file with everything that can be set."),
        Component(
            "config validate", "omni_cli.config.validate:validate", "Find everything that is wrong with a config."
        ),
        CommandComponent(
            "doctor",
            "omni_cli.doctor:doctor",
            "Look at this machine and the installation, and say what to do.",
            section="Prepare",
        ),
        CommandComponent(
            "import",
            "omni_cli.importing.command:import_",
            "Convert a config of vLLM-Omni or SGLang-Omni.",
            section="Prepare",
        ),
        CommandComponent("pipelines", "omni_cli.pipelines:pipelines", "List the installed pipelines.", section="Run"),
        CommandComponent(
            "plan",
            "omni_cli.plan:plan",
            "Show which process and device each stage gets, and if it fits.",
            section="Prepare",
        ),
        CommandComponent("plugins", "omni_cli.plugins:plugins", "Show, check and begin plugins.", section="Develop"),
        CommandComponent(
            "profile", "omni_cli.profile:profile", "Record where a running pipeline's time goes.", section="Operate"
        ),
        CommandComponent("ps", "omni_cli.ps:ps", "List the running pipelines.", section="Operate"),
        CommandComponent("run", "omni_cli.request.run:run", "Run a pipeline: one request, or a chat.", section="Run"),
        CommandComponent(
            "stage", "omni_cli.stage:stage", "Replace or scale a stage of a running pipeline.", section="Operate"
        ),
        CommandComponent("stop", "omni_cli.ps:stop", "End a running pipeline in order.", section="Operate"),
        CommandComponent("top", "omni_cli.top:top", "Watch a running pipeline.", section="Operate"),
    ]


@hookimpl
def omni_services() -> list[ServiceComponent]:
    """Return the parts of the runtime by slot."""
    return [
        ServiceComponent(
            "deploy-files", "omni_cli.deploy.source:LayeredSource", "deploy files, presets, hub ids", slot="sources"
        ),
        ServiceComponent(
            "devices", "omni_cli.deploy.fitting:fitted", "GPUs and memory budgets of this machine", slot="fitting"
        ),
        ServiceComponent("live", "omni_cli.live.operations:Operations", "replace and scale stages", slot="operations"),
        ServiceComponent(
            "request-limits", "omni_cli.deploy.limits:check_limits", "what requests may bring", slot="limits"
        ),
        ServiceComponent(
            "shell", "omni_cli.completion:Completion", "names, options and settings", slot="shell-completion"
        ),
        ServiceComponent("spans", "omni_cli.tracing.telemetry:RequestSpans", "OpenTelemetry spans", slot="telemetry"),
        ServiceComponent("traces", "omni_cli.tracing.profiles:Profiles", "profiles as Chrome traces", slot="profiles"),
    ]
