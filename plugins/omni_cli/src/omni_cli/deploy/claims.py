"""The pipeline that runs a checkpoint: by its architectures, else by the claim of a pipeline that runs what no other does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_core.api import ConfigError, PipelineComponent, PluginError, PluginRegistry, expanded, load
from omni_core.runtime_api import (
    CHECKPOINT_CONFIGS,
    PluginFault,
    PluginRecord,
    PluginStatus,
    config_of,
    distribution_for,
    isolated,
    read_yaml,
)

Claim = tuple[PipelineComponent, PluginRecord]


def claimant(name: str, folder: Path, registry: PluginRegistry) -> PipelineComponent:
    """Return the installed pipeline that runs a checkpoint.

    Args:
        name: of the checkpoint, as the user gave it.
        folder: holds its config.

    Raises:
        ConfigError: the folder holds no checkpoint; no pipeline claims it, or several do. PluginError: one would that is not installed, or
            not loaded; the message says what to do.
    """
    path = config_of(folder)
    if path is None:
        raise ConfigError(f"{name} is no checkpoint: it has no {' and no '.join(CHECKPOINT_CONFIGS)}")
    raw = read_yaml(path)
    wanted = _architectures(raw)
    claims = [
        (each, record) for each, record in registry.components("omni_pipelines") if isinstance(each, PipelineComponent)
    ]
    found = [each for each, _ in claims if set(each.architectures) & set(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(f"omni run {each.name} --model {name}" for each in found)
        raise ConfigError(f"{name}: several installed pipelines run {' or '.join(wanted)}; choose one: {choices}")
    fallbacks, refusals = _fallbacks(folder, claims)
    if (known := distribution_for(wanted)) is not None:
        slower = "".join(f". Or, by a general pipeline: omni run {each.name} --model {name}" for each, _ in fallbacks)
        raise PluginError(f"{path}: {_missing(known, registry)}{slower}")
    if len(fallbacks) == 1:
        return fallbacks[0][0]
    if fallbacks:
        choices = " or ".join(f"omni run {each.name} --model {name} ({record.title})" for each, record in fallbacks)
        raise ConfigError(f"{name}: several installed plugins claim what no other runs; choose one: {choices}")
    known = distribution_for(raw) if isinstance(raw, dict) and not wanted else None
    if known is not None and known not in _loaded(registry):
        raise PluginError(f"{path}: {_missing(known, registry)}")  # a config that says by its sections what it is
    known_ones = [f"{each.name} ({', '.join(each.architectures)})" for each, _ in claims if each.architectures]
    problem = "\n".join(
        [
            f"{path}: no installed pipeline runs {' or '.join(wanted) or 'it (it names no architectures)'}; "
            f"there are: {', '.join(known_ones) or 'none that name architectures'}. "
            f"Or name one: omni run PIPELINE --model {name}",
            *refusals,
        ]
    )
    raise ConfigError(problem)


def claimant_of_file(name: str, registry: PluginRegistry) -> PipelineComponent | None:
    """Return the installed pipeline that runs a file; ``None``: none claims files of such a name.

    Raises:
        ConfigError: the file is not there, or several pipelines claim it. PluginError: one would that is not installed, or not loaded.
    """
    path = expanded(name)
    found = [
        each
        for each, _ in registry.components("omni_pipelines")
        if isinstance(each, PipelineComponent) and path.name.endswith(each.files)
    ]
    if not found:
        if path.is_file() and (known := distribution_for([path.suffix])) is not None:
            raise PluginError(f"{name}: {_missing(known, registry)}")
        return None
    if not path.is_file():
        raise ConfigError(f"{name}: there is no such file")
    if len(found) > 1:
        choices = " or ".join(f"omni run {each.name} --model {name}" for each in found)
        raise ConfigError(f"{name}: several installed pipelines run such files; choose one: {choices}")
    return found[0]


def _architectures(raw: Any) -> list[str]:
    values = raw if isinstance(raw, dict) else {}
    listed = values.get("architectures")
    names = [*(listed if isinstance(listed, list) else []), values.get("model_type"), values.get("_class_name")]
    return [each for each in names if isinstance(each, str)]


def _fallbacks(folder: Path, claims: list[Claim]) -> tuple[list[Claim], list[str]]:
    """Return those that can run the checkpoint although they do not name it, and a line for each of the others."""
    able: list[Claim] = []
    refusals = []
    for component, record in claims:
        if component.fallback is None:
            continue
        try:
            with isolated():
                answer = load(component.fallback)(str(folder))
        except PluginFault as fault:
            answer = f"its claim failed: {fault}"
        if answer is None:
            able.append((component, record))
        else:
            refusals.append(f"pipeline {component.name!r} of {record.distribution} does not: {answer}")
    return able, refusals


def _loaded(registry: PluginRegistry) -> list[str]:
    return [each.distribution for each in registry.records if each.status is PluginStatus.LOADED]


def _missing(distribution: str, registry: PluginRegistry) -> str:
    """Return what to do to get the pipelines of a distribution."""
    for record in registry.records:
        if record.distribution == distribution and record.status is PluginStatus.LOADED:
            newer = f"pip install --upgrade {distribution}"
            return f"it is run by a newer {distribution} than {record.version}, which is installed: {newer}"
        if record.distribution == distribution:
            show = f"omni plugins show {record.name}"
            return f"it is run by plugin {record.title}, which is {record.status.value}: {record.reason} ({show})"
    return f"it is run by {distribution}, which is not installed: pip install {distribution}"
