"""Registers the ``engine`` scheduler, the commands about checkpoints, and what the runtime needs for PyTorch."""

from __future__ import annotations

from omni_core.api import CommandComponent, Component, SchedulerComponent, ServiceComponent, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the commands by name."""
    return [
        CommandComponent(
            "cache",
            "omni_torch.checkpoints.cache_command:cache",
            "List or remove the prepared weights that later starts map.",
            section="Prepare",
        ),
        CommandComponent(
            "pull", "omni_torch.checkpoints.pull:pull", "Download a checkpoint from the hub.", section="Prepare"
        ),
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
            conformance="omni_testing.ours.engine:EngineConformance",
        )
    ]


@hookimpl
def omni_services() -> list[ServiceComponent]:
    """Return the parts of the runtime for stages that compute with PyTorch."""
    forks, kernels = "omni_torch.processes.forks.server:ForkServer", "omni_torch.operations.kernel_specs:kernel_specs"
    return [
        ServiceComponent("torch-forks", forks, "stage processes that share the import of PyTorch", slot="fork-server"),
        ServiceComponent("torch-kernels", kernels, "installed kernels for launch specs", slot="kernels"),
        ServiceComponent(
            "torch-process",
            "omni_torch.processes.settings:TorchProcess",
            "kernels, GPU and budgets",
            slot="stage-process",
        ),
        ServiceComponent("torch-ranks", "omni_torch.processes.ranks:TorchRanks", "ranks in step", slot="ranks"),
    ]
