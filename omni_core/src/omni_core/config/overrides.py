"""Overrides: a YAML overlay and ``--set`` flags change fields of stages by name, never silently.

Order, the later the stronger: the pipeline's own values, its ``runtime_overrides``, the overlay file, flags. Every override
either changes the config or is an error that names it. At one level no path may be set twice, nor a mapping beside one of its
keys; the origin of every value is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

import attrs
from attrs import field, frozen

from omni_core.config.loading import parse_assignment, structure, unstructure
from omni_core.config.schema import EndpointsConfig, PipelineConfig, RelayConfig, RestartConfig, StageConfig
from omni_core.errors import ConfigError, did_you_mean

_PARTS: dict[str, type] = {"relay": RelayConfig, "restart": RestartConfig, "endpoints": EndpointsConfig}
"""Fields that are classes of their own."""

_FREE = ("factory_args", "env_defaults", "runtime_overrides", "project_payload", "settings", "hosts")
"""Fields that are mappings of the author's own keys: below them any key may be set."""

_FLAT = ("env_defaults", "hosts")
"""Those whose keys may contain dots, because their values are no mappings."""

_TOPOLOGY = ("name", "next", "terminal", "wait_for", "stream_to")

Path = tuple[str, ...]


@frozen
class Override:
    """One value for one path, such as ``("decoder", "factory_args", "max_running")``, and where it was written."""

    parts: Path
    value: Any
    origin: str

    @property
    def path(self) -> str:
        return ".".join(self.parts)


@frozen
class ResolvedConfig:
    """A config with its overrides applied, and the origin of each: path to ``(origin, value before, value now)``."""

    config: PipelineConfig
    provenance: dict[str, tuple[str, Any, Any]] = field(factory=dict)


def parse_flag(text: str) -> Override:
    """Parse ``stage.path=value``; the value is read as a YAML scalar or flow collection.

    Raises:
        ConfigError: not of that form.
    """
    path, value = parse_assignment("--set", text, "stage.field=value, such as decoder.gpu=0")
    return Override(tuple(path.split(".")), value, f"--set {text}")


def parse_overlay(values: Any, origin: str) -> list[Override]:
    """Parse an overlay document: pipeline fields, and ``stages`` as a mapping from stage name to fields.

    Raises:
        ConfigError: it is no mapping, or adds a stage list (topology belongs to the pipeline).
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{origin}: must be a mapping of fields")
    overrides: list[Override] = []
    for name, value in values.items():
        if name == "stages":
            if not isinstance(value, dict):
                raise ConfigError(f"{origin}: stages: must map names to fields; an overlay cannot add or remove stages")
            for stage, fields in value.items():
                overrides += _leaves((str(stage),), fields, origin)
        else:
            overrides += _leaves((str(name),), value, origin)
    return overrides


def _leaves(parts: Path, value: Any, origin: str) -> Iterator[Override]:
    """Descend into mappings, so that an overlay changes single arguments and leaves their neighbours."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves((*parts, str(key)), inner, origin)
    else:
        yield Override(parts, value, origin)


def apply(config: PipelineConfig, *levels: list[Override]) -> ResolvedConfig:
    """Apply levels of overrides, the later the stronger. ``runtime_overrides`` end up in the ``factory_args`` of their stages.

    Raises:
        ConfigError: an unknown path (with the nearest known one), a path twice in one level or beside a part of itself, or a
            value of a wrong type.
    """
    values = unstructure(config)
    own = values.pop("runtime_overrides", {})
    provenance: dict[str, tuple[str, Any, Any]] = {}
    for level in ([Override(("runtime_overrides",), own, "runtime_overrides")] if own else [], *levels):
        seen: dict[Path, str] = {}
        for override in _in_factory_args(level):
            _refuse_twice(override, seen)
            seen[override.parts] = override.origin
            before = _set(values, config, override)
            provenance[override.path] = (override.origin, before, override.value)
    return ResolvedConfig(structure(values), provenance)


def _in_factory_args(level: Iterable[Override]) -> Iterator[Override]:
    """Write ``runtime_overrides`` as the arguments that they are."""
    for override in level:
        first, *rest = override.parts
        if first != "runtime_overrides":
            yield override
        elif len(rest) > 1:
            yield Override((rest[0], "factory_args", *rest[1:]), override.value, override.origin)
        elif isinstance(override.value, dict):
            for key, each in override.value.items():
                yield from _in_factory_args([Override((*override.parts, str(key)), each, override.origin)])
        else:
            where = f"{override.origin}: {override.path}"
            raise ConfigError(f"{where}: must be a mapping of arguments, is {override.value!r}")


def _refuse_twice(override: Override, seen: dict[Path, str]) -> None:
    for parts, origin in seen.items():
        shorter = min(len(parts), len(override.parts))
        if parts[:shorter] == override.parts[:shorter]:
            if len(parts) == len(override.parts):
                raise ConfigError(f"{override.path} is set twice: by {origin} and by {override.origin}")
            raise ConfigError(
                f"{'.'.join(parts[:shorter])} is set as a whole and in part: by {origin} and by {override.origin}; "
                "one of them would be lost"
            )


def _set(values: dict[str, Any], config: PipelineConfig, override: Override) -> Any:
    """Change one path in ``values``; return the value that was there."""
    first, *rest = override.parts
    stages = [stage.name for stage in config.stages]
    if first in stages:
        target = next(stage for stage in values["stages"] if stage["name"] == first)
        return _set_field(target, StageConfig, rest, override)
    fields = [attribute.name for attribute in attrs.fields(PipelineConfig) if attribute.name != "stages"]
    if first in fields:
        return _set_field(values, PipelineConfig, [first, *rest], override)
    hint = did_you_mean(first, [*stages, *fields])
    raise ConfigError(f"{override.origin}: {first!r} is neither a stage nor a pipeline field{hint}")


def _set_field(target: dict[str, Any], cls: type, path: list[str], override: Override) -> Any:
    if not path:
        raise ConfigError(f"{override.origin}: name a field of the stage, such as {override.path}.process")
    names = [attribute.name for attribute in attrs.fields(cls)]
    name, *rest = path
    if name not in names:
        raise ConfigError(f"{override.origin}: {name!r} is not a field here{did_you_mean(name, names)}")
    if name in _TOPOLOGY:
        raise ConfigError(f"{override.origin}: {name!r} is topology, which the pipeline alone decides")
    if rest and name in _PARTS:
        return _set_field(_inner(target, name, override), _PARTS[name], rest, override)
    if rest and name not in _FREE:
        raise ConfigError(f"{override.origin}: {name!r} has no fields of its own")
    if name in _FLAT and rest:
        rest = [".".join(rest)]
    while rest:
        target = _inner(target, name, override)
        name, *rest = rest
    before = target.get(name)
    target[name] = deepcopy(override.value)  # a later override may change a part of it
    return before


def _inner(target: dict[str, Any], name: str, override: Override) -> dict[str, Any]:
    """Return the mapping called ``name`` within ``target``, made if there is none."""
    if target.get(name) is None:
        target[name] = {}
    inner = target[name]
    if not isinstance(inner, dict):
        raise ConfigError(f"{override.origin}: {name!r} is {inner!r}, which has no parts")
    return inner
