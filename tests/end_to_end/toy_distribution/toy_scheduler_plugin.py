"""Registers the toy scheduler."""

from __future__ import annotations

from omni_core.hookspecs import SchedulerComponent, hookimpl

supports = (1, 1)


@hookimpl
def omni_schedulers() -> list[SchedulerComponent]:
    return [SchedulerComponent("one-by-one", "toy_scheduler:OneByOne", "no batches", runs_model_runners=True)]
