"""The defaults that a config gives to requests, checked against the pipeline's interface and the parts of its stages."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.hookspecs import PartComponent
from omni_core.interface import Interface
from omni_core.plugins import PluginRegistry
from omni_core.references import normalize


def with_parts(interface: Interface, stages: list[StageConfig], registry: PluginRegistry) -> Interface:
    """Return the interface with what the named parts of the stages declare beyond it."""
    for stage in stages:
        for hook, name in (("omni_model_runners", stage.model_runner), ("omni_feedback_strategies", stage.feedback)):
            for component in _parts(hook, name, registry):
                groups = [
                    evolve(group, parameters=[*group.parameters, *component.parameters])
                    if interface.roles.get(group.role) == stage.name
                    else group
                    for group in interface.groups
                ]
                interface = evolve(interface, groups=groups, metadata=[*interface.metadata, *component.metadata])
    return interface


def _parts(hook: str, name: str | None, registry: PluginRegistry) -> list[PartComponent]:
    """Return the part that a stage names, by its name or its reference, if it declares anything."""
    parts = [component for component, _ in registry.components(hook) if isinstance(component, PartComponent)]
    return [part for part in parts if name in (part.name, part.target, normalize(part.target))][:1]


def affinity_keys(config: PipelineConfig) -> list[str]:
    """Return the keys of ``metadata`` by which requests stay with a replica."""
    return [stage.affinity_key for stage in config.stages if stage.affinity_key is not None]


def default_params(config: PipelineConfig, interface: Interface) -> dict[str, Any]:
    """Return ``defaults.params`` as :meth:`Interface.check_params` returns those of a request. Raises as that."""
    return interface.check_params({group_named(interface, key): value for key, value in config.defaults.params.items()})


def group_named(interface: Interface, key: str) -> str:
    """Return the group of parameters that a key of ``defaults.params`` means: its name, or its role."""
    names = [group.name for group in interface.groups]
    return next((group.name for group in interface.groups if group.role == key and key not in names), key)
