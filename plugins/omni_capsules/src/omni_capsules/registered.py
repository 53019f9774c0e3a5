"""The code that a replay runs without ``--trust``: what installed plugins register, as they register it.

A capsule chooses among it, as a config with registered names does. A reference counts as registered if it is the target of a component of
its kind, or if an installed pipeline has it in the same place of the stage of that name. Arguments are the pipeline's own, or values that
can name neither code nor a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from omni_capsules.environment import FUNCTIONS
from omni_core.client.source import PipelineSource
from omni_core.config.parts import PARTS, resolve_part, scheduler_of
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import OmniError, PluginError, shown
from omni_core.hookspecs import PipelineComponent
from omni_core.plugins import PluginRegistry
from omni_core.plugins.isolation import PluginFault, isolated
from omni_core.protocol.specs import StageSpec
from omni_core.references import normalize
from omni_core.stage.assembly import CONTEXT

_HOOKS = {"feedback": "omni_feedback_strategies", "model_runner": "omni_model_runners"}
_HOOKS |= {"factory": "omni_schedulers", "scheduler": "omni_schedulers"}
_WORD = re.compile(r"[\w -]*")
"""No dotted path, no path of a file, no URL, no expression."""

_DEVICE = re.compile(r"[a-z]+(:\d+)?")


@frozen
class _Own:
    """A stage as an installed pipeline has it: references by place, arguments, and the pipeline's model."""

    references: Mapping[str, str] = {}
    arguments: Mapping[str, Any] = {}
    model: str = ""


def unregistered(spec: StageSpec, pipeline: str, registry: PluginRegistry) -> list[str]:
    """Return a line for each reference and argument of a stage that needs the user's trust.

    Args:
        pipeline: the name of the pipeline that it belonged to. A pipeline that is registered with that name is asked for its stage; if
            there is none, every one that runs the stage's checkpoint.
    """
    candidates = [_Own(), *_own(spec, pipeline, registry)]
    return min(([*_problems(spec, each, registry)] for each in reversed(candidates)), key=len)


def _problems(spec: StageSpec, own: _Own, registry: PluginRegistry) -> Iterator[str]:
    for place, reference in _references(spec):
        hook = _HOOKS.get(place, "omni_payload_projections")
        targets = (normalize(component.target) for component, _ in registry.components(hook))
        if reference != own.references.get(place) and reference not in targets:
            yield f"{place} {shown(reference)}"
    for name, value in spec.factory_args.items():
        if (name not in own.arguments or own.arguments[name] != value) and (name in CONTEXT or not _is_plain(value)):
            yield f"factory_args.{shown(name)[1:-1]} {shown(value)}"
    for name, value in spec.injected.items():
        if not _is_context(name, value, own) and value != spec.name:
            yield f"{shown(name)[1:-1]} {shown(value)}"


def _is_context(name: str, value: Any, own: _Own) -> bool:
    if name == "model_path":
        return value == own.model or (isinstance(value, str) and os.path.isdir(value))
    if name == "device":
        return isinstance(value, str) and _DEVICE.fullmatch(value) is not None
    return name in CONTEXT and name != "tp_rendezvous" and _is_plain(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float) or _WORD.fullmatch(value) is not None


def _references(stage: StageSpec | StageConfig) -> Iterator[tuple[str, Any]]:
    """Yield every place of a stage that names code, with what it names."""
    for place in (*PARTS, *FUNCTIONS):
        if getattr(stage, place) is not None:
            yield place, getattr(stage, place)
    for target, reference in stage.project_payload.items():
        yield f"project_payload.{target}", reference


def _own(spec: StageSpec, pipeline: str, registry: PluginRegistry) -> Iterator[_Own]:
    components = [each for each, _ in registry.components("omni_pipelines") if isinstance(each, PipelineComponent)]
    named = [each for each in components if each.name == pipeline]
    model = spec.injected.get("model_path")
    folder = model if isinstance(model, str) and os.path.isdir(model) else None
    if folder is None:  # a pipeline may fetch what is no folder here
        named, components = [each for each in named if each.default_model is not None], []
    for component in named or components:
        try:
            with isolated():
                config = PipelineSource(component.name).built(component, folder, {})
                stages = [each for each in config.stages if each.name == spec.name]
            yield from (_own_stage(each, config, registry) for each in stages)
        except (OmniError, PluginFault):  # another model's checkpoint
            continue


def _own_stage(stage: StageConfig, config: PipelineConfig, registry: PluginRegistry) -> _Own:
    def resolved(place: str, name: str) -> str:
        if place in PARTS:
            return resolve_part(stage, place, name, registry) or ""
        return registry.resolve_reference("omni_payload_projections", name)

    references = {place: resolved(place, name) for place, name in _references(stage)}
    try:
        scheduler = scheduler_of(stage, registry)
    except PluginError:
        scheduler = None
    if scheduler is not None:
        references["scheduler"] = resolved("scheduler", scheduler)
    arguments = {**stage.factory_args, **config.runtime_overrides.get(stage.name, {})}
    return _Own(references, arguments, config.model_path)
