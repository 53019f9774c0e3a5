"""Registers the ``engine`` scheduler and the commands about checkpoints."""

from __future__ import annotations

from omni_core.hookspecs import Component, SchedulerComponent, hookimpl


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


@hookimpl
def omni_schedulers() -> list[Component]:
    return [
        SchedulerComponent(
            "engine",
            "omni_torch.engine.scheduler:EngineScheduler",
            "continuous batching over a paged KV cache, in PyTorch",
            requires=("torch",),
            runs_model_runners=True,
            preference=10,
            conformance="omni_torch.engine.conformance:EngineConformance",
        )
    ]
