"""The configs of live operations: a stage with other settings, or with another number of replicas. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omni_cli.deploy.override_layers import Layer, apply
from omni_core.api import ConfigError, PipelineConfig, StageConfig, did_you_mean
from omni_core.runtime_api import Override, plan, process_groups

_FIXED = ("name", "process", "next", "terminal", "wait_for", "stream_to", "relay", "affinity_key", "balance", "work_fn",
          "autoscale")  # fmt: skip
"""Fields of a stage that other processes know, or the coordinator."""

_REFUSED = {
    "replicas": "use `omni stage scale`",
    "autoscale": "its bounds are those of the start; scale by hand (`omni stage scale`), or restart the pipeline",
}

_PLACES = ("gpu", "host")
"""Fields that may list a value for each replica."""


def group_of(config: PipelineConfig, name: str) -> tuple[str, list[StageConfig]]:
    """Return the process group that a live operation means, by its name or that of its only stage.

    Raises:
        ConfigError: there is none, or the stage shares its process with others.
    """
    groups = process_groups(config)
    for group, stages in groups.items():
        names = [stage.name for stage in stages]
        if group == name or names == [name]:
            return group, stages
        if name in names:
            others = ", ".join(each for each in names if each != name)
            raise ConfigError(
                f"stage {name!r} shares the process {group!r} with {others}, and a process is replaced and scaled as a "
                f"whole: name the process, {group!r}"
            )
    known = [*groups, *(stage.name for stage in config.stages)]
    raise ConfigError(f"no stage or process is called {name!r}{did_you_mean(name, list(dict.fromkeys(known)))}")


def replaced(config: PipelineConfig, stages: Sequence[StageConfig], settings: Mapping[str, Any]) -> PipelineConfig:
    """Return the config with settings of the stages of one process changed.

    Args:
        settings: values by path, such as ``factory_args.max_running``; with several stages, ``STAGE.`` comes before it.

    Raises:
        ConfigError: a setting is wrong, or cannot be changed while the pipeline runs.
    """
    return _changed(config, stages, settings, _REFUSED)


def scaled(
    config: PipelineConfig, stages: Sequence[StageConfig], count: int, settings: Mapping[str, Any]
) -> PipelineConfig:
    """Return the config with ``count`` replicas of the stages of one process.

    Args:
        settings: ``gpu`` and ``host`` only, for the further replicas. Lists that become too long are cut.

    Raises:
        ConfigError: less than one, a replica that runs would have another place, or a setting is wrong.
    """
    if count < 1:
        raise ConfigError(f"a stage has at least one replica, not {count}; to end the pipeline, use `omni stop`")
    name = stages[0].name
    given = {key.removeprefix(f"{name}.") if len(stages) == 1 else key: value for key, value in settings.items()}
    for key in given:
        if key not in _PLACES and key not in [f"{stage.name}.{place}" for stage in stages for place in _PLACES]:
            raise ConfigError(
                f"set {key}: replicas differ in {' and '.join(_PLACES)} only; to change others, replace them"
            )
    values: dict[str, Any] = {}
    for stage in stages:
        values[f"{stage.name}.replicas"] = count
        for field in _PLACES:
            value = getattr(stage, field)
            if isinstance(value, list):  # one for each replica, or for each of its ranks
                each = len(value) // stage.replicas
                if count > stage.replicas and each > 1 and f"{stage.name}.{field}" not in given and field not in given:
                    raise ConfigError(
                        f"stages[{stage.name}].{field} lists one for each rank: give {count * each} for {count} replicas, "
                        f"--set {field}=[...], those of the replicas that run first"
                    )
                values[f"{stage.name}.{field}"] = value[: count * (len(value) // stage.replicas)]
    values |= {key if len(stages) > 1 else f"{name}.{key}": value for key, value in given.items()}
    new = _changed(config, stages, values, {})
    _check_places(config, new, {stage.name for stage in stages})
    return new


def _check_places(old: PipelineConfig, new: PipelineConfig, stages: set[str]) -> None:
    """Refuse to move a replica that runs."""

    def places(config: PipelineConfig) -> dict[tuple[str, int, int], tuple[object, object]]:
        mine = [each for each in plan(config) if not stages.isdisjoint(stage.name for stage in each.stages)]
        return {(each.group, each.slot, each.rank): (each.gpus, each.host) for each in mine}

    before, after = places(old), places(new)
    for (group, slot, _), place in after.items():
        if before.get((group, slot, _), place) != place:
            raise ConfigError(
                f"replica {slot} of {group} runs elsewhere: list its own gpu and host first, or replace it"
            )


def _changed(
    config: PipelineConfig, stages: Sequence[StageConfig], settings: Mapping[str, Any], refused: Mapping[str, str]
) -> PipelineConfig:
    if not settings:
        return config
    names = [stage.name for stage in stages]
    advice = dict.fromkeys(_FIXED, "other processes go by it; restart the pipeline") | dict(refused)
    overrides = []
    for path, value in settings.items():
        first, _, rest = path.partition(".")
        stage, field = (first, rest) if first in names and rest else (names[0], path)
        if len(names) > 1 and not (first in names and rest):
            raise ConfigError(f"set {path}: begin with one of the stages of the process: {', '.join(names)}")
        if (kind := field.partition(".")[0]) in advice:
            raise ConfigError(f"set {path}: {kind!r} cannot be changed while the pipeline runs: {advice[kind]}")
        overrides.append(Override(("stages", stage, *field.split(".")), value, f"set {path}={value!r}"))
    return apply(config, Layer("set", overrides)).config
