"""Layers of overrides: deploy files, the environment and flags change fields of stages by name, never silently.

The pipeline's own values (with its ``runtime_overrides``) are the lowest layer; :mod:`omni_cli.deploy.files` makes those of files.
Every override either changes the config or is an error that names where it was written. In one layer no path may be set twice, nor a
mapping beside one of its keys; the origin of every value is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import attrs
from attrs import evolve, field, frozen

from omni_cli.deploy.origins import located
from omni_core.api import ConfigError, PipelineConfig, RelayConfig, StageConfig, did_you_mean
from omni_core.runtime_api import (
    EVERY_STAGE,
    Fields,
    Override,
    ResolvedConfig,
    config_problems,
    in_factory_args,
    refuse_twice,
    set_field,
    structure,
    unstructure,
)

ENVIRONMENT = "environment"
"""The name of the layer of environment variables."""

_USED_BY = {"gpu": "device", "gpu_memory": "device", "tp_size": "tp_size"}
"""Fields that :data:`EVERY_STAGE` sets where the stage's factory takes this argument."""

Rule = Callable[[PipelineConfig], Iterable[str]]
"""Yields a line for each problem of a config, which begins with a path such as ``stages[decoder].tp_size:``."""

Parameters = Callable[[Mapping[str, Any]], Collection[str]]
"""Returns the names of what the factory, or the parts, of a stage take; the stage is given as its fields."""


@frozen
class Layer:
    """The overrides of one place, by its name in ``omni config explain``: a file, the environment, the flags; and what is wrong there."""

    name: str
    overrides: list[Override]
    problems: Sequence[str] = ()


@frozen
class LayeredConfig(ResolvedConfig):
    """A config with its layers applied.

    Attributes:
        provenance: of every value that a layer set: path to ``(origin, value before, value now)``.
        layers: what was applied, from low to high, with :data:`EVERY_STAGE` replaced by the stages.
        below: the fields of the config before any layer, as plain data.
        origins: where a file says them, by path.
    """

    provenance: dict[str, tuple[str, Any, Any]] = field(factory=dict)
    layers: list[Layer] = field(factory=list)
    below: Mapping[str, Any] = field(factory=dict)
    origins: Mapping[str, str] = field(factory=dict)

    def located(self, text: str) -> str:
        """Return problems of the config, one a line, each with the places of the values that it names."""
        known = {path: (origin,) for path, origin in self.origins.items()} | self.provenance
        return "\n".join(located(line, known)[0] for line in text.splitlines())

    def in_file(self, path: str) -> str | None:
        """Return where a file says the value of a path; ``None`` if the pipeline, a variable or a flag does."""
        for layer in reversed(self.layers):
            for each in layer.overrides:
                if each.path == path:
                    return None if layer.name.startswith((ENVIRONMENT, "--")) else each.origin
        return self.origins.get(path)


def for_every_stage(overrides: Iterable[Override]) -> tuple[list[Override], list[Override]]:
    """Split overrides into those for every stage, which are weaker, and the others."""
    split: tuple[list[Override], list[Override]] = ([], [])
    for each in overrides:
        split[not _is_for_every_stage(each)].append(each)
    return split


def _is_for_every_stage(override: Override) -> bool:
    return override.parts[0] == EVERY_STAGE or override.parts[:2] == ("stages", EVERY_STAGE)


def _given(stage: Mapping[str, Any]) -> Collection[str]:
    given = stage.get("factory_args")
    return given if isinstance(given, dict) else ()


def apply(
    config: PipelineConfig | Mapping[str, Any],
    *layers: Layer,
    parameters: Parameters = _given,
    rules: Iterable[Rule] = (),
    origins: Mapping[str, str] | None = None,
    outside: Collection[str] = (),
    problems: Iterable[str] = (),
) -> LayeredConfig:
    """Apply layers, the later the stronger, and check the result. ``runtime_overrides`` end up in the ``factory_args`` of their stages.

    Args:
        config: a config, or its fields as plain data, which may be wrong.
        origins: then, where each path of it was written.
        parameters: decides which stages :data:`EVERY_STAGE` means.
        rules: further checks of the whole config.
        outside: beginnings of paths that ``config`` was made from: they are recorded only.
        problems: those found before.

    Raises:
        ConfigError: a line for every problem of the layers and of the result, each with where it was written: an unknown path (with
            the nearest known one), a path twice in one layer or beside a part of itself, a value of a wrong type.
    """
    problems = [*problems, *(line for layer in layers for line in layer.problems)]
    left_out: set[tuple[str, str]] = set()
    below = unstructure(config) if isinstance(config, PipelineConfig) else config
    while True:
        work = _Application(deepcopy(dict(below)), parameters, left_out, outside)
        work.run(layers)
        problems += work.problems
        known = {path: (origin,) for path, origin in (origins or {}).items()} | work.provenance
        try:
            new: PipelineConfig = structure(work.values)
            break
        except ConfigError as error:
            wrong = [located(line, known) for line in str(error).splitlines()]
        problems += [line for line, _ in wrong]
        # Values that are wrong by themselves are left out, so that the rules of the whole are checked too.
        offenders = {(path, known[path][0]) for _, path in wrong if path in known} - left_out
        if not offenders:
            raise ConfigError("\n".join(dict.fromkeys(problems)))
        left_out |= offenders
        below = _without(below, [path for path, _ in offenders if path not in work.provenance])
    resolved = LayeredConfig(new, work.provenance, work.layers, below, origins or {})
    problems += [resolved.located(line) for rule in (config_problems, *rules) for line in rule(new)]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return resolved


def _without(values: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return a config's fields without those around ``paths``."""
    left = deepcopy(dict(values))
    for first, _, rest in (path.partition(".") for path in paths):
        stages = [each for each in left.get("stages", ()) if isinstance(each, dict) and each.get("name") == first]
        for target, key in [(each, rest.partition(".")[0]) for each in stages] or [(left, first)]:
            target.pop(key, None)
    return left


class _Application:
    """The application of layers to the fields of a config.

    Args:
        left_out: path and origin of overrides that are not applied.
    """

    def __init__(
        self,
        values: dict[str, Any],
        parameters: Parameters,
        left_out: set[tuple[str, str]],
        outside: Collection[str],
    ) -> None:
        self._fields = Fields(values)
        self.values, self._stages = values, self._fields.stages
        self._parameters, self._left_out, self._outside = parameters, left_out, outside
        self._relays: dict[str, Any] = {}
        self.problems: list[str] = []
        self.provenance: dict[str, tuple[str, Any, Any]] = {}
        self.layers: list[Layer] = []

    def run(self, layers: Iterable[Layer]) -> None:
        """Apply layers from low to high. Presets of relays come first, so that any layer may refer to those of any other."""
        own = self.values.pop("runtime_overrides", None)
        if own:
            layers = [Layer("runtime_overrides", [Override(("runtime_overrides",), own, "runtime_overrides")]), *layers]
        presets = {id(layer): [each for each in layer.overrides if each.parts[0] == "relays"] for layer in layers}
        for layer in layers:
            self._apply(presets[id(layer)])
        for layer in layers:
            rest = [each for each in layer.overrides if each.parts[0] != "relays"]
            applied = [one for part in for_every_stage(rest) for one in self._apply(self._expanded(part))]
            self.layers.append(Layer(layer.name, [*presets[id(layer)], *applied]))
        for name, preset in self._relays.items():
            try:
                structure(preset, RelayConfig, f"relays[{name}]")
            except ConfigError as error:
                self.problems += [located(line, self.provenance)[0] for line in str(error).splitlines()]

    def _apply(self, overrides: Iterable[Override]) -> list[Override]:
        """Apply what one place says; return what was applied."""
        seen: dict[tuple[str, ...], str] = {}
        applied = []
        for each in overrides:
            for override in in_factory_args(each):
                path = override.path
                if (path, override.origin) in self._left_out:
                    continue
                try:
                    parts, override = tuple(path.split(".")), self._with_preset(override)
                    refuse_twice(override, seen)
                    before = self._set(override)
                except ConfigError as error:
                    self.problems.append(str(error))
                    continue
                seen[parts] = override.origin
                for known, (_, _, value) in [*self.provenance.items()]:
                    is_made_of = value is None and path.startswith(f"{known}.")  # a null that has got parts
                    if known.startswith(f"{path}.") or is_made_of:
                        del self.provenance[known]
                self.provenance[path] = (override.origin, before, override.value)
                applied.append(override)
        return applied

    def _expanded(self, overrides: Iterable[Override]) -> Iterator[Override]:
        """Write what is for every stage as overrides of the stages that have it."""
        for override in overrides:
            if not _is_for_every_stage(override):
                yield override
                continue
            rest = override.parts[override.parts.index(EVERY_STAGE) + 1 :]
            field_name, wanted = rest[0] if rest else "", ""
            if field_name == "factory_args" and len(rest) > 1:
                wanted = rest[1]
            elif field_name in _USED_BY:
                wanted = _USED_BY[field_name]
            known = {name: {*self._parameters(stage), *_given(stage)} for name, stage in self._stages.items()}
            found = [name for name in self._stages if not wanted or wanted in known[name]]
            if not found:
                hint = did_you_mean(wanted, sorted(set().union(*known.values())))
                self.problems.append(f"{override.origin}: no stage has a factory that takes {wanted!r}{hint}")
            for name in (
                found if field_name in attrs.fields_dict(StageConfig) else found[:1]
            ):  # one problem, not one for each
                yield Override(("stages", name, *rest), override.value, override.origin)

    def _with_preset(self, override: Override) -> Override:
        """Write the name of a preset as what it stands for."""
        parts, name = override.parts, override.value
        if (
            not isinstance(name, str)
            or parts[-1] != "relay"
            or len(override.path.split(".")) != 2
            or parts[0] == "relays"
        ):
            return override
        if name not in self._relays:
            hint = did_you_mean(name, self._relays)
            raise ConfigError(f"{override.where}: `relays` has no {name!r}{hint}")
        return evolve(override, value=self._relays[name])

    def _set(self, override: Override) -> Any:
        """Change one path; return the value that was there."""
        first, *rest = override.parts
        if first in self._outside:
            known = self.provenance.get(override.path)
            return None if known is None else known[2]
        if first == "relays":
            if len(rest) < 2:
                raise ConfigError(f"{override.origin}: relays: must be {{NAME: {{field: value}}}}, the presets by name")
            return set_field(self._relays.setdefault(rest[0], {}), RelayConfig, rest[1:], override)
        return self._fields.set(override)
