"""Overrides: values for single fields of a pipeline, by path. Each changes the config or is an error that names where it was written.

Flags are the only place of overrides here. Deploy files, the environment and their layers are a service's (``sources``),
which changes fields by the same :class:`Fields`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import attrs
from attrs import frozen

from omni_core.config.loading import parse_assignment, structure, unstructure
from omni_core.config.schema import FIELD_CLASSES, PipelineConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, did_you_mean

_FREE = (
    *("factory_args", "env_defaults", "runtime_overrides", "project_payload", "settings", "hosts"),
    *("env", "labels", "params", "metadata", "server", "autoscale", "admission"),
)
"""Fields that are mappings of the author's own keys: below them any key may be set."""

_FLAT = ("env", "env_defaults", "hosts", "labels")
"""Those whose keys may contain dots, because their values are no mappings."""

_OWN: dict[type, tuple[str, ...]] = {
    StageConfig: ("name", "next", "terminal", "wait_for", "stream_to", "chunks_to", "part"),
    PipelineConfig: ("interface", "config_cls", "parts"),
}
"""Fields that no override changes."""

Path = tuple[str, ...]


@frozen
class Override:
    """One value for one path, such as ``("decoder", "factory_args", "max_running")``, and where it was written.

    A path that begins with ``stages`` is that of a stage for certain; others may be that of a field of the pipeline.
    """

    parts: Path
    value: Any
    origin: str

    @property
    def path(self) -> str:
        return ".".join(self.parts[1:] if self.parts[0] == "stages" else self.parts)

    @property
    def where(self) -> str:
        """The origin, with the path where the origin does not say it."""
        return self.origin if self.path in self.origin else f"{self.origin}: {self.path}"


@frozen
class ResolvedConfig:
    """A config with its overrides applied."""

    config: PipelineConfig

    def located(self, text: str) -> str:
        """Return problems of the config, one a line, each with the places of the values that it names, as far as they are known."""
        return text


class Fields:
    """The fields of a config as plain data, which overrides change."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        stages = values.get("stages")
        named = [each for each in stages if isinstance(each, dict)] if isinstance(stages, list) else []
        self.stages: dict[str, dict[str, Any]] = {str(each.get("name")): each for each in named}

    def set(self, override: Override) -> Any:
        """Change one path; return the value that was there.

        Raises:
            ConfigError: there is no such path, or it may not be changed.
        """
        first, *rest = override.parts
        fields = [attribute.name for attribute in attrs.fields(PipelineConfig) if attribute.name != "stages"]
        if first == "stages" or first in self.stages:
            if first == "stages":
                first, *rest = rest or [first]
            if first not in self.stages:
                raise ConfigError(f"{override.origin}: no stage is called {first!r}{did_you_mean(first, self.stages)}")
            return set_field(self.stages[first], StageConfig, rest, override)
        if first in fields:
            return set_field(self.values, PipelineConfig, [first, *rest], override)
        hint = did_you_mean(first, [*self.stages, *fields])
        raise ConfigError(f"{override.origin}: {first!r} is neither a stage nor a pipeline field{hint}")


def parse_flag(text: str) -> Override:
    """Parse ``stage.path=value``; the value is read as a YAML scalar or flow collection.

    Raises:
        ConfigError: not of that form.
    """
    path, value = parse_assignment("--set", text, "stage.field=value, such as decoder.gpu=0")
    parts = tuple(path.split("."))
    return Override(parts, value_of(parts, value, text.partition("=")[2]), f"--set {text}")


def value_of(parts: Path, value: Any, text: str) -> Any:
    """Return the value of a flag or variable, read from ``text``: that of an environment variable is a text, whatever it looks like."""
    around = parts[:-1]
    is_variable = around[:1] == ("env_defaults",) or "env" in around[1 : 3 if around[:1] == ("stages",) else 2]
    return text if is_variable and isinstance(value, int | float) else value


def overridden(config: PipelineConfig | Mapping[str, Any], overrides: Iterable[Override]) -> PipelineConfig:
    """Return a valid config with overrides of one place applied. ``config``: a config, or its fields as plain data.

    Raises:
        ConfigError: an unknown path (with the nearest known one), a path twice or beside a part of itself, a value that is wrong.
    """
    fields = Fields(unstructure(config) if isinstance(config, PipelineConfig) else deepcopy(dict(config)))
    own = fields.values.pop("runtime_overrides", None)  # weaker than what is set
    for given in ([Override(("runtime_overrides",), own, "runtime_overrides")] if own else [], overrides):
        seen: dict[Path, str] = {}
        for override in (one for each in given for one in in_factory_args(each)):
            refuse_twice(override, seen)
            fields.set(override)
            seen[tuple(override.path.split("."))] = override.origin
    new: PipelineConfig = structure(fields.values)
    validate(new)
    return new


def in_factory_args(override: Override) -> Iterator[Override]:
    """Write ``runtime_overrides`` as the arguments that they are."""
    first, *rest = override.parts
    if first != "runtime_overrides":
        yield override
    elif len(rest) > 1:
        yield Override(("stages", rest[0], "factory_args", *rest[1:]), override.value, override.origin)
    elif isinstance(override.value, dict):
        for key, each in override.value.items():
            yield from in_factory_args(Override((*override.parts, str(key)), each, override.origin))
    else:
        raise ConfigError(f"{override.where}: must be a mapping of arguments, is {override.value!r}")


def refuse_twice(override: Override, seen: dict[Path, str]) -> None:
    """Raise a ConfigError if the path of an override, or one around it or below it, is in ``seen``, with its origin."""
    parts = tuple(override.path.split("."))
    for other, origin in seen.items():
        shorter = min(len(parts), len(other))
        if other[:shorter] == parts[:shorter]:
            if len(other) == len(parts):
                raise ConfigError(f"{override.path} is set twice: by {origin} and by {override.origin}")
            raise ConfigError(
                f"{'.'.join(parts[:shorter])} is set as a whole and in part: by {origin} and by {override.origin}; "
                "one of them would be lost"
            )


def set_field(target: dict[str, Any], cls: type, path: list[str], override: Override) -> Any:
    """Change a field of ``target``, which are those of an instance of ``cls``; return what was there. Raises as :meth:`Fields.set`."""
    if not path:
        raise ConfigError(f"{override.where}: name a field of the stage, such as {override.path}.process")
    names = [attribute.name for attribute in attrs.fields(cls)]
    name, *rest = path
    if name not in names:
        raise ConfigError(f"{override.where}: {name!r} is not a field here{did_you_mean(name, names)}")
    if name in _OWN.get(cls, ()):
        raise ConfigError(f"{override.where}: {name!r} is decided by the pipeline alone")
    if rest and name in FIELD_CLASSES:
        return set_field(_inner(target, name, override), FIELD_CLASSES[name], rest, override)
    if rest and name not in _FREE:
        raise ConfigError(f"{override.where}: {name!r} has no fields of its own")
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
        raise ConfigError(f"{override.where}: {name!r} is {inner!r}, which has no parts")
    return inner
