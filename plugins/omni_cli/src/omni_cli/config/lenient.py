"""The config of a source with mistakes: goes on with what can be read, so that everything that is wrong is found at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise

from attrs import define, evolve, field, fields

from omni_cli.deploy.files import KEYS, SOURCE, DeployFile, SourceValues, environment_layer
from omni_cli.deploy.override_layers import Layer, LayeredConfig, Rule, apply
from omni_cli.deploy.platforms import platform
from omni_cli.deploy.source import LayeredSource
from omni_core.api import ConfigError, OmniError, PipelineConfig, PluginRegistry, StageConfig, load
from omni_core.runtime_api import EVERY_STAGE, Override, structure

_OPTION = re.compile(r"--option (\w+)|\boptions\.(\w+)[:=]|keyword argument '(\w+)'")
"""The names of options in the errors of a pipeline's function."""

_ITS_OWN = ("factory", "model_runner", "feedback", "scheduler", "entry_stage", "fused_stages", "runtime_overrides")
"""Fields that nothing can be said about without the pipeline."""

_STAND_IN = "builtins:dict"


@define
class LenientSource(LayeredSource):
    """A source that takes the nearest pipeline for one that is misspelt, leaves out options that are wrong, and takes the pipeline's
    own small checkpoint for one that cannot be read. A line for each is in ``mistakes``. ``is_unknown``: there is no such pipeline.
    """

    mistakes: list[str] = field(factory=list)
    is_unknown: bool = False

    def made(self, deploy: DeployFile | None, chosen: SourceValues, registry: PluginRegistry) -> PipelineConfig:
        """Return what the function of the pipeline makes, without what is wrong. Raises if there is no such pipeline."""
        while True:
            try:
                return super().made(deploy, chosen, registry)
            except OmniError as error:
                repaired = self._repaired(deploy, chosen, registry, str(error))
                if repaired is None:
                    self.is_unknown = True
                    raise
                self.mistakes += str(error).splitlines()
                chosen = repaired

    def _repaired(
        self, deploy: DeployFile | None, chosen: SourceValues, registry: PluginRegistry, problem: str
    ) -> SourceValues | None:
        """Return the values without the one that ``problem`` is about; ``None`` if there is nothing to go on with."""
        known = registry.names("omni_pipelines")
        if chosen.pipeline not in (None, self.name) and self.name in known:
            return evolve(chosen, pipeline=None)  # the file is for another one than is asked for
        if chosen.pipeline is not None and chosen.pipeline not in known:
            nearest = get_close_matches(chosen.pipeline, known, 1)
            return evolve(chosen, pipeline=nearest[0]) if nearest and deploy is not None else None
        named = {each for found in _OPTION.findall(problem) for each in found if each in chosen.options}
        if named:
            return evolve(chosen, options={name: each for name, each in chosen.options.items() if name not in named})
        try:
            component = self._chosen(deploy, chosen, registry)
            small = None if component.default_model is None else load(component.default_model)()[0]
        except OmniError:
            return None
        return evolve(chosen, model=small) if small not in (None, chosen.model) else None

    def layers(self, registry: PluginRegistry) -> list[Layer]:
        """Return the layers of the files, the environment and the flags, from low to high."""
        deploy = self.files(registry)
        files = deploy.layers(self.platform or platform()) if deploy is not None else []
        names = dict.fromkeys(each.parts[1] for layer in files for each in layer.overrides if each.parts[0] == "stages")
        return [*files, environment_layer([*KEYS, *names]), *self._flags()]

    def problems_without_pipeline(self, registry: PluginRegistry, rules: Iterable[Rule]) -> Iterator[str]:
        """Yield a line for each value that is wrong in any pipeline, where it is not known which one is meant."""
        layers = [
            Layer(layer.name, [each for each in layer.overrides if _is_in_any_pipeline(each)], layer.problems)
            for layer in self.layers(registry)
        ]
        names = dict.fromkeys(
            each.parts[1] for layer in layers for each in layer.overrides if each.parts[0] == "stages"
        )
        stages = [
            StageConfig(name=name, process=name, factory=_STAND_IN, next=following, terminal=following is None)
            for name, following in pairwise([*(each for each in names if each != EVERY_STAGE), None])
            if name is not None
        ]
        config = PipelineConfig(
            model_path="", stages=stages or [StageConfig(name="", factory=_STAND_IN)], placement_fn=_STAND_IN
        )
        try:
            apply(config, *layers, rules=rules)
        except ConfigError as error:
            # Only what the layers say: the rest is about the pipeline that stands in.
            origins = tuple(each.origin for layer in layers for each in layer.overrides)
            own = [line for layer in layers for line in layer.problems]
            yield from (line for line in str(error).splitlines() if line.startswith(origins) or line in own)


def resolved(
    source: LayeredSource, registry: PluginRegistry, rules: Sequence[Rule], own: Sequence[Rule]
) -> tuple[LayeredConfig | None, list[str]]:
    """Return the config of a source, ``None`` if it is wrong, and a line for everything that is wrong.

    Args:
        rules: hold for any config.
        own: need the pipeline's own stages.
    """
    given = {each.name: getattr(source, each.name) for each in fields(LayeredSource)}
    lenient = LenientSource(**given)
    lines, found = list[str](), None
    try:
        found = lenient.resolve(registry, [*own, *rules])
    except OmniError as error:
        lines += str(error).splitlines()
    lines += lenient.mistakes
    if lenient.is_unknown:
        lines += lenient.problems_without_pipeline(registry, rules)
    lines += [line for layer in lenient.layers(registry) for each in layer.overrides for line in _type_problems(each)]
    return (None if lines else found), list(dict.fromkeys(lines))


def _type_problems(override: Override) -> Iterator[str]:
    """Yield a line for a value of a wrong type by itself, also where a higher layer hides it."""
    first, *rest = override.parts
    is_stage = first == "stages" or (first not in KEYS and first != EVERY_STAGE)
    if first == "stages":
        first, *rest = rest or [""]
    if (
        first == EVERY_STAGE
        or (is_stage and (not rest or rest == ["relay"]))
        or first in (*SOURCE, "relays", "runtime_overrides")
    ):
        return
    value = override.value
    for key in reversed(rest[1:] if is_stage else rest):
        value = {key: value}
    try:
        if is_stage:
            structure({"name": first, rest[0]: value}, StageConfig, f"stages[{first}]")
        else:
            structure({"model_path": "", "stages": [], first: value})
    except ConfigError as error:
        for line in str(error).splitlines():
            if "unknown field" not in line:  # which the layers report with their words
                yield line if line.startswith(override.origin) else f"{override.origin}: {line}"


def _is_in_any_pipeline(override: Override) -> bool:
    parts = override.parts[2:] if override.parts[0] == "stages" else override.parts
    return (
        override.parts[0] not in SOURCE
        and override.parts[1:2] != (EVERY_STAGE,)
        and parts[:1] not in [(each,) for each in _ITS_OWN]
    )
