"""The deploy file of a plan: what the chosen placement changes of the pipeline, with the plan as a comment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from omni_cli.deploy.source import LayeredSource
from omni_core.api import PipelineConfig, StageConfig
from omni_core.runtime_api import is_file

_WRITTEN = ("gpu", "gpu_memory", "tp_size", "replicas", "process", "balance", "host")
"""Fields of a stage that a search changes."""


def deploy_text(source: LayeredSource, config: PipelineConfig, about: Iterable[str]) -> str:
    """Return a deploy file for a config that was made from a source.

    Args:
        about: lines of the comment at its beginning.
    """
    return "\n".join([*(f"# {line}".rstrip() for line in about), *_lines(source, config)]) + "\n"


def _lines(source: LayeredSource, config: PipelineConfig) -> Iterator[str]:
    name = str(source.name)
    is_deploy = is_file(name) or "/" in name
    plain = LayeredSource(source.name, source.model, source.options, platform=source.platform)
    before = plain.resolve().config
    if is_deploy:
        yield f"base: {_value(str(Path(name).absolute()) if is_file(name) else name)}"
    else:
        yield f"pipeline: {_value(name)}"
    if source.model is not None:
        model = Path(source.model).expanduser()
        yield f"model_path: {_value(str(model.absolute()) if model.is_dir() else source.model)}"
    if source.options:
        yield f"options: {_value(dict(source.options))}"
    if config.max_in_flight != before.max_in_flight:
        yield f"max_in_flight: {config.max_in_flight}"
    changes = {stage.name: _changes(before.stage(stage.name), stage) for stage in config.stages}
    if any(changes.values()):
        yield "stages:"
        yield from (f"  {name}: {_value(fields)}" for name, fields in changes.items() if fields)


def _changes(before: StageConfig, after: StageConfig) -> dict[str, Any]:
    found = {name: getattr(after, name) for name in _WRITTEN if getattr(after, name) != getattr(before, name)}
    arguments = {
        name: value
        for name, value in after.factory_args.items()
        if name not in before.factory_args or before.factory_args[name] != value
    }
    return {**found, "factory_args": arguments} if arguments else found


def _value(value: Any) -> str:
    """Return a value as YAML in one line (JSON, which is YAML too)."""
    return json.dumps(value, ensure_ascii=False, default=attrs.asdict)
