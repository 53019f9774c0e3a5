"""Changes of a placement that may help where it saturates."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

from omni_core.config.placement import process_groups
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_planner.building import settings_of
from omni_planner.profile import PipelineProfile
from omni_planner.shapes import ranks_of
from omni_planner.trials import Trial, messages_of_group
from omni_torch.placement.budgets import CHUNK_SIZE, MAX_BATCH_TOKENS, MAX_RUNNING

SATURATED = 0.8
"""The share of the time from which an engine's limits are changed."""

IDLE = 0.1
"""The share of the time below which a stage needs no process of its own."""

DEADLINES = "omni_torch.vocoder.deadlines:Deadlines"
"""The policy that is tried."""

_PROCESSORS = "processors"


def moves(trial: Trial, profile: PipelineProfile) -> Iterator[dict[str, Any]]:
    """Yield changes of settings, of the busiest stages first."""
    config = trial.config
    stages = {stage.name: stage for stage in config.stages if stage.name in profile.stages}
    named = {stage.name: group for group, each in process_groups(config).items() for stage in each}

    def share(name: str) -> float:
        """Return the share of the time of a stage's turns, or of its process's messages if that is more."""
        return max(trial.shares.get(name, 0.0), trial.shares.get(messages_of_group(named[name]), 0.0))

    busiest = sorted(stages, key=lambda name: -share(name))
    for name in busiest[:2]:
        if stages[name].gpu is None:
            yield from _replicas(stages[name], config)
        else:
            yield from _ranks(stages[name], profile)
    for name in busiest:
        if profile.stages[name].kind == "vocoder":
            yield from _chunks(stages[name])
        elif profile.stages[name].kind == "engine" and trial.shares.get(name, 0.0) > SATURATED:
            yield from _limits(stages[name])
    yield from _deadlines(stages.values(), profile)
    yield from _processes(config, trial)


def _replicas(stage: StageConfig, config: PipelineConfig) -> Iterator[dict[str, Any]]:
    group = next(stages for stages in process_groups(config).values() if stage in stages)
    for count in sorted({stage.replicas + 1, stage.replicas * 2}):
        changes: dict[str, Any] = {f"{each.name}.replicas": count for each in group}
        yield changes | {f"{each.name}.balance": "least_busy" for each in group}


def _ranks(stage: StageConfig, profile: PipelineProfile) -> Iterator[dict[str, Any]]:
    """Yield the same GPUs with twice and with half as many ranks: answers are sooner, or there are more of them."""
    gpus = stage.tp_size * stage.replicas
    for ranks in (2 * stage.tp_size, stage.tp_size // 2):
        if ranks in ranks_of(profile, stage.name, gpus):
            replicas = gpus // ranks
            balance = "least_busy" if replicas > 1 else "turns"
            yield {
                f"{stage.name}.tp_size": ranks, f"{stage.name}.replicas": replicas, f"{stage.name}.balance": balance,
            }  # fmt: skip


def _chunks(stage: StageConfig) -> Iterator[dict[str, Any]]:
    settings = settings_of(stage)
    first, later = int(settings.get("initial_chunk", 4)), int(settings.get("chunk", 24))
    for initial, chunk in ((first // 2, later), (first * 2, later), (first, later // 2), (first, later * 2)):
        if 1 <= initial <= chunk:
            path = f"{stage.name}.factory_args"
            yield {f"{path}.initial_chunk": initial, f"{path}.chunk": chunk}
    if "growth" in settings:
        yield {f"{path}.growth": 1.0 if settings["growth"] is None else None}


def _limits(stage: StageConfig) -> Iterator[dict[str, Any]]:
    settings, path = settings_of(stage), f"{stage.name}.factory_args"
    yield {f"{path}.max_running": 2 * int(settings.get("max_running") or MAX_RUNNING)}
    yield {f"{path}.max_batch_tokens": int(settings.get("max_batch_tokens") or MAX_BATCH_TOKENS) // 2}
    yield {f"{path}.chunk_size": max(64, int(settings.get("chunk_size") or CHUNK_SIZE) // 2)}


def _deadlines(stages: Collection[StageConfig], profile: PipelineProfile) -> Iterator[dict[str, Any]]:
    """Yield the other order of requests for all stages that can have both: by the deadlines of listeners, or by arrival. A policy of
    somebody's own stays.
    """
    able = [stage for stage in stages if _can_have_policy(stage, profile)]
    given = {stage.factory_args.get("policy") for stage in able}
    if able:
        yield {f"{stage.name}.factory_args.policy": None if given == {DEADLINES} else DEADLINES for stage in able}


def _can_have_policy(stage: StageConfig, profile: PipelineProfile) -> bool:
    given = stage.factory_args
    if profile.stages[stage.name].kind not in ("engine", "vocoder") or given.get("policy") not in (None, DEADLINES):
        return False
    if given.get("patience") is not None:  # which counts steps, and policies count seconds
        return False
    return "policy" in settings_of(stage) if stage.factory is not None else stage.scheduler in (None, "engine")


def _processes(config: PipelineConfig, trial: Trial) -> Iterator[dict[str, Any]]:
    """Yield changes of process groups: the quietest stages of a place share one, neighbours join, and groups of several stages are divided.

    Where there are GPUs, of the stages on these only.
    """
    groups = process_groups(config)
    named = {stage.name: group for group, stages in groups.items() for stage in stages}
    places: dict[object, list[StageConfig]] = {}
    for stage in config.stages:
        place = _place(stage)
        if place is not None:
            places.setdefault(place, []).append(stage)
    if any(stage.gpu is not None for stage in config.stages):
        places.pop(_PROCESSORS, None)
    for stages in places.values():
        quiet = [stage for stage in stages if trial.shares.get(stage.name, 0.0) < IDLE]
        if len({named[stage.name] for stage in quiet}) > 1:
            yield {f"{stage.name}.process": quiet[0].process or quiet[0].name for stage in quiet}
        for before, after in pairwise(stages):
            if named[before.name] != named[after.name]:
                yield {f"{after.name}.process": before.process or before.name}
    divisible = {stage.name for stages in places.values() for stage in stages}
    for group, stages in groups.items():
        if len(stages) > 1 and stages[-1].name != group and stages[-1].name in divisible:
            yield {f"{stages[-1].name}.process": stages[-1].name}


def _place(stage: StageConfig) -> object:
    """Return what stages of one process have in common, the processors or the GPUs; ``None`` for one that must be alone."""
    if stage.tp_size > 1 or (stage.gpu is None and stage.replicas > 1):
        return None
    if stage.gpu is None:
        return _PROCESSORS
    return stage.replicas, *(stage.gpu if isinstance(stage.gpu, list) else [stage.gpu])
