"""The parameters that the stages of a config take, without importing what takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import fields

from omni_cli.deploy.signatures import parameters
from omni_core.api import ConfigError, PluginError, PluginRegistry, StageConfig
from omni_core.runtime_api import STAGE_PARTS, resolve_part, scheduler_of


def parameters_of(stage: Mapping[str, Any], registry: PluginRegistry) -> dict[str, tuple[str, str | None]]:
    """Return what the factory or the parts of a stage take by name, as far as their sources show it: by the name of a parameter, the
    reference of the callable that has it, and the source of its default (``None``: it is required). ``stage``: its fields.
    """
    known = {each.name for each in fields(StageConfig)}
    found: dict[str, tuple[str, str | None]] = {}
    try:
        config = StageConfig(**{name: value for name, value in stage.items() if name in known and name != "relay"})
        given = {name: getattr(config, name) for name in STAGE_PARTS} | {"scheduler": scheduler_of(config, registry)}
    except (ConfigError, PluginError, TypeError):
        return {}  # what is wrong with the stage is reported elsewhere
    for part, name in given.items():
        try:
            reference = resolve_part(config, part, name, registry)
            named = {} if reference is None else parameters(reference) or {}
        except (ConfigError, PluginError):
            continue
        found |= {each: (str(reference), default) for each, default in named.items() if each not in found}
    return found
