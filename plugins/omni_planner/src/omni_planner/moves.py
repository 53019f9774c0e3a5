"""Changes of a placement that may help where it saturates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omni_core.api import StageConfig
from omni_planner.estimate import Estimate
from omni_planner.replica import settings_of
from omni_planner.shapes import ranks_of
from omni_planner.trials import Trial
from omni_torch.placement.budgets import CHUNK_SIZE, MAX_BATCH_TOKENS, MAX_RUNNING

SATURATED = 0.8
"""The share of the time from which an engine's limits are changed."""


def moves(trial: Trial, estimate: Estimate) -> Iterator[dict[str, Any]]:
    """Yield changes of settings, of the busiest stages first."""
    stages = {stage.name: stage for stage in trial.config.stages}
    busiest = sorted(stages, key=lambda name: -trial.shares.get(name, 0.0))
    for name in busiest[:2]:
        yield from _ranks(stages[name], estimate)
    for name in busiest:
        kind = estimate.stages[name].kind
        if kind == "vocoder":
            yield from _chunks(stages[name])
        elif kind == "engine" and trial.shares.get(name, 0.0) > SATURATED:
            yield from _limits(stages[name])


def _ranks(stage: StageConfig, estimate: Estimate) -> Iterator[dict[str, Any]]:
    """Yield the same GPUs with twice and with half as many ranks: answers are sooner, or there are more of them."""
    gpus = stage.tp_size * stage.replicas
    for ranks in (2 * stage.tp_size, stage.tp_size // 2):
        if ranks in ranks_of(estimate, stage.name, gpus):
            replicas = gpus // ranks
            balance = "least_busy" if replicas > 1 else "turns"
            yield {
                f"{stage.name}.tp_size": ranks, f"{stage.name}.replicas": replicas, f"{stage.name}.balance": balance,
            }  # fmt: skip


def _chunks(stage: StageConfig) -> Iterator[dict[str, Any]]:
    settings, path = settings_of(stage), f"{stage.name}.factory_args"
    first, later = int(settings["initial_chunk"]), int(settings["chunk"])
    for initial, chunk in ((first // 2, later), (first * 2, later), (first, later // 2), (first, later * 2)):
        if 1 <= initial <= chunk:
            yield {f"{path}.initial_chunk": initial, f"{path}.chunk": chunk}
    if "growth" in settings:
        yield {f"{path}.growth": 1.0 if settings["growth"] is None else None}


def _limits(stage: StageConfig) -> Iterator[dict[str, Any]]:
    settings, path = settings_of(stage), f"{stage.name}.factory_args"
    yield {f"{path}.max_running": 2 * int(settings.get("max_running") or MAX_RUNNING)}
    yield {f"{path}.max_batch_tokens": int(settings.get("max_batch_tokens") or MAX_BATCH_TOKENS) // 2}
    yield {f"{path}.chunk_size": max(64, int(settings.get("chunk_size") or CHUNK_SIZE) // 2)}
