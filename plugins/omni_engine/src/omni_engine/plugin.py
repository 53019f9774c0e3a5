"""Registers the ``engine`` scheduler."""

from __future__ import annotations

from omni_core.hookspecs import Component, hookimpl


@hookimpl
def omni_schedulers() -> list[Component]:
    return [
        Component(
            "engine",
            "omni_engine.scheduler:EngineScheduler",
            "continuous batching over a paged KV cache, in PyTorch",
            requires=("torch",),
            conformance="omni_engine.conformance:EngineConformance",
        )
    ]
