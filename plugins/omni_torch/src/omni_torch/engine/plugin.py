"""Registers the ``engine`` scheduler."""

from __future__ import annotations

from omni_core.hookspecs import Component, SchedulerComponent, hookimpl


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
