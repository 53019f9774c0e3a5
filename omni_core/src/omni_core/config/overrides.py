"""Overrides: a YAML overlay and ``--set`` flags change fields of stages by name, never silently.

Order: what the pipeline says, then the overlay file, then flags. Every override either changes the config or is an error
that names it; the same path twice at one level is refused; and of each value it is known who set it.
"""

from __future__ import annotations

from io import StringIO
from typing import Any

import attrs
from attrs import field, frozen
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from omni_core.config.loading import structure, unstructure
from omni_core.config.schema import PipelineConfig, RelayConfig, RestartConfig, StageConfig
from omni_core.errors import ConfigError, did_you_mean

_FREE_FORM = ("factory_args", "env_defaults", "runtime_overrides", "project_payload")
"""Fields that are mappings of the author's own keys: below them any key may be set."""


@frozen
class Override:
    """One value for one path, such as ``decoder.factory_args.max_running``, and where it was written."""

    path: str
    value: Any
    origin: str


@frozen
class ResolvedConfig:
    """A config with its overrides applied, and who set what: path to ``(origin, value before, value now)``."""

    config: PipelineConfig
    provenance: dict[str, tuple[str, Any, Any]] = field(factory=dict)


def parse_flag(text: str) -> Override:
    """``stage.path=value``; the value is read as a YAML scalar or flow collection.

    Raises:
        ConfigError: not of that form.
    """
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set {text!r}: must be of the form stage.field=value, such as decoder.gpu=0")
    try:
        parsed = YAML(typ="safe", pure=True).load(StringIO(value)) if value else ""
    except YAMLError as error:
        raise ConfigError(f"--set {text!r}: the value is no valid YAML: {error}") from error
    return Override(path, parsed, f"--set {text}")


def parse_overlay(values: Any, origin: str) -> list[Override]:
    """An overlay document: pipeline fields, and ``stages`` as a mapping from stage name to fields.

    Raises:
        ConfigError: it is no mapping, or adds a stage list (topology belongs to the pipeline).
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{origin}: must be a mapping of fields")
    overrides = []
    for name, value in values.items():
        if name == "stages":
            if not isinstance(value, dict):
                raise ConfigError(
                    f"{origin}: stages: must map stage names to fields; an overlay cannot add or remove stages"
                )
            for stage, fields in value.items():
                overrides += _leaves(str(stage), fields, origin)
        else:
            overrides += _leaves(str(name), value, origin)
    return overrides


def _leaves(path: str, value: Any, origin: str) -> list[Override]:
    """Mappings are descended, so that an overlay changes single arguments and leaves their neighbours."""
    if isinstance(value, dict) and value:
        return [each for key, inner in value.items() for each in _leaves(f"{path}.{key}", inner, origin)]
    return [Override(path, value, origin)]


def apply(config: PipelineConfig, *levels: list[Override]) -> ResolvedConfig:
    """Apply levels of overrides, the later the stronger.

    Raises:
        ConfigError: an unknown path (with the nearest known one), a path twice in one level, or a value of a wrong type.
    """
    values = unstructure(config)
    provenance: dict[str, tuple[str, Any, Any]] = {}
    for level in levels:
        seen: dict[str, str] = {}
        for override in level:
            if override.path in seen:
                raise ConfigError(f"{override.path} is set twice: by {seen[override.path]} and by {override.origin}")
            seen[override.path] = override.origin
            before = _set(values, config, override)
            provenance[override.path] = (override.origin, before, override.value)
    return ResolvedConfig(structure(values), provenance)


def _set(values: dict[str, Any], config: PipelineConfig, override: Override) -> Any:
    """Change one path in ``values``; the value that was there."""
    first, *rest = override.path.split(".")
    stages = [stage.name for stage in config.stages]
    if first in stages:
        target = next(stage for stage in values["stages"] if stage["name"] == first)
        return _set_field(target, StageConfig, rest, override)
    fields = [attribute.name for attribute in attrs.fields(PipelineConfig) if attribute.name != "stages"]
    if first in fields:
        return _set_field(values, PipelineConfig, [first, *rest], override)
    raise ConfigError(
        f"{override.origin}: {first!r} is neither a stage nor a pipeline field{did_you_mean(first, [*stages, *fields])}"
    )


def _set_field(target: dict[str, Any], cls: type, path: list[str], override: Override) -> Any:
    if not path:
        raise ConfigError(f"{override.origin}: name a field of the stage, such as {override.path}.process")
    names = [attribute.name for attribute in attrs.fields(cls)]
    name, *rest = path
    if name not in names:
        raise ConfigError(f"{override.origin}: {name!r} is not a field here{did_you_mean(name, names)}")
    if name in ("name", "next", "terminal", "wait_for", "stream_to"):
        raise ConfigError(
            f"{override.origin}: {name!r} is topology, which belongs to the pipeline and cannot be overridden"
        )
    if rest and name == "relay":
        return _set_field(target.setdefault("relay", {}), RelayConfig, rest, override)
    if rest and name == "restart":
        return _set_field(target.setdefault("restart", {}), RestartConfig, rest, override)
    if rest and name not in (*_FREE_FORM, "endpoints"):
        raise ConfigError(f"{override.origin}: {name!r} has no fields of its own")
    while rest:
        target = target.setdefault(name, {})
        name, *rest = rest
    before = target.get(name)
    target[name] = override.value
    return before
