"""The pipeline here that a foreign file becomes, and what its component declares about such files.

A file is matched by the component's ``architectures`` and its stages by the interface's ``roles``, in their order; a service of the
slot ``imports`` says where the keys of the model itself go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from attrs import asdict, field, frozen

from omni_cli.deploy.parameters import parameters_of
from omni_cli.deploy.source import LayeredSource
from omni_core.api import (
    ConfigError,
    Interface,
    ParameterGroup,
    PipelineComponent,
    PipelineConfig,
    PluginRegistry,
    ServiceComponent,
    load,
)
from omni_core.runtime_api import IMPORTS

_NAMES = "pipeline"
"""The key with the foreign names of a pipeline."""

_JOINTS = ("runner", "feedback")
"""Parameters by which the parts of a stage get each other."""


@frozen(kw_only=True)
class Declaration:
    """The declaration of the slot ``imports``, sorted.

    Attributes:
        names: the foreign names of this pipeline (``pipeline``: names with spaces between them), beside its ``architectures``.
        paths: by foreign key, the field here: ``codec_chunk_frames`` is ``code2wav.factory_args.chunk``; ``stages.NAME`` is our
            stage, or several with ``+`` between them.
        holds: by foreign key and value (``codec_streaming: true``, or ``*`` for any), why this is the case here anyway.
        notes: by foreign key, why it has no counterpart: what is declared for it is a sentence, not a path.
    """

    names: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(factory=dict)
    holds: Mapping[str, str] = field(factory=dict)
    notes: Mapping[str, str] = field(factory=dict)

    @classmethod
    def of(cls, imports: Mapping[str, str]) -> Declaration:
        """Sort what a service declares (:data:`omni_core.services.IMPORTS`)."""
        given = {key: text for key, text in imports.items() if key != _NAMES}
        return cls(
            names=tuple(imports.get(_NAMES, "").split()),
            paths={key: text for key, text in given.items() if " " not in text},
            holds={key: text for key, text in given.items() if " " in text and ": " in key},
            notes={key: text for key, text in given.items() if " " in text and ": " not in key},
        )

    def reason(self, key: str, value: Any) -> str | None:
        """Return why ``key`` with this value holds here anyway."""
        return self.holds.get(f"{key}: {json.dumps(value, default=str)}") or self.holds.get(f"{key}: *")

    @property
    def known(self) -> list[str]:
        """Every key that is declared."""
        return [*self.paths, *self.notes, *(key.partition(": ")[0] for key in self.holds)]


@frozen(slots=False)
class Target:
    """A pipeline here, resolved: its stages, their parameters and its interface."""

    name: str
    config: PipelineConfig
    declaration: Declaration
    registry: PluginRegistry
    architectures: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @cached_property
    def interface(self) -> Interface:
        return self.config.interface or Interface()

    @property
    def names(self) -> list[str]:
        """Foreign names of this pipeline."""
        return [*self.architectures, *self.declaration.names]

    @property
    def all_stages(self) -> list[str]:
        """Our stages, those without a number too."""
        return [stage.name for stage in self.config.stages]

    @cached_property
    def stages(self) -> list[tuple[str, ...]]:
        """Our stages by the number of theirs, which may be several of ours."""
        names = list(dict.fromkeys(self.interface.roles.values())) or self.all_stages
        joined = [tuple(path.split("+")) for path in self.declaration.paths.values() if "+" in path]
        return list(dict.fromkeys(next((each for each in joined if name in each), (name,)) for name in names))

    @property
    def numbers(self) -> dict[str, str]:
        """Our stages as text, by the number of theirs."""
        return {str(number): " + ".join(names) for number, names in enumerate(self.stages)}

    def group(self, stage: str) -> ParameterGroup | None:
        """Return the group of request parameters that a stage reads."""
        roles = {role for role, name in self.interface.roles.items() if name == stage}
        return next((group for group in self.interface.groups if group.role in roles), None)

    def reaches(self, sources: tuple[str, ...], targets: tuple[str, ...]) -> bool:
        """Return whether results or streams of one of theirs get to another, maybe through further stages that have no number."""
        frontier, seen = [*sources], {*sources}
        numbered = {name for group in self.stages for name in group}
        while frontier:
            stage = self.config.stage(frontier.pop())
            for name in (*stage.next_stages, *stage.stream_to):
                if name in targets:
                    return True
                if name not in seen and name not in numbered:
                    seen.add(name)
                    frontier.append(name)
        return False

    def parameters(self, stage: str) -> dict[str, str | None] | None:
        """Return the names that ``factory_args`` of a stage may hold, with the source of each default; ``None`` if they are not known."""
        if stage not in self._parameters:
            found = parameters_of(asdict(self.config.stage(stage), recurse=False), self.registry)
            named = {name: default for name, (_, default) in found.items() if name not in _JOINTS}
            self._parameters[stage] = named or None
        return self._parameters[stage]

    @cached_property
    def _parameters(self) -> dict[str, dict[str, str | None] | None]:
        return {}


def find(registry: PluginRegistry, names: list[str], stems: list[str]) -> PipelineComponent | None:
    """Return the component for a file: by the first of ``names`` that is one's, or else by the beginning of a file's name.

    Args:
        names: foreign names of pipelines, exact.
        stems: names of files, of which a foreign name is the beginning.

    Raises:
        ConfigError: several pipelines have that name.
    """
    known: dict[str, list[PipelineComponent]] = {}
    for component in _components(registry):
        for name in foreign_names(component, registry):
            known.setdefault(name, []).append(component)
    wanted = [name for name in names if name in known]
    for stem in () if names else stems:
        fitting = [name for name in known if stem == name or (stem.startswith(name) and stem[len(name)] in "_-.")]
        wanted += [max(fitting, key=len)] if fitting else []
    if not wanted:
        return None
    found = known[wanted[0]]
    if len(found) > 1:
        choices = " or ".join(f"--pipeline {each.name}" for each in found)
        raise ConfigError(f"several installed pipelines are called {wanted[0]!r} there; choose one: {choices}")
    return found[0]


def known_names(registry: PluginRegistry) -> list[str]:
    """Return every foreign name that an installed pipeline answers to."""
    return sorted({name for each in _components(registry) for name in foreign_names(each, registry)})


def foreign_names(component: PipelineComponent, registry: PluginRegistry) -> list[str]:
    """Return the names of a component in other systems."""
    return [*component.architectures, *declaration(component.name, registry).names]


def declaration(pipeline: str, registry: PluginRegistry) -> Declaration:
    """Return what a service declares for a pipeline. Raises PluginError: two do."""
    services = [each for each, _ in registry.components("omni_services") if each.name == pipeline]
    if any(isinstance(each, ServiceComponent) and each.slot == IMPORTS for each in services):
        return Declaration.of(load(registry.get("omni_services", pipeline).target))
    return Declaration()


def resolve(component: PipelineComponent, model: str | None, registry: PluginRegistry) -> Target:
    """Resolve a pipeline, with its default checkpoint if no ``model`` is given.

    Raises:
        ConfigError: the checkpoint cannot be read, or the pipeline needs one.
    """
    config = LayeredSource(component.name, model).resolve(registry).config
    declared = declaration(component.name, registry)
    return Target(component.name, config, declared, registry, component.architectures, tuple(component.options))


def _components(registry: PluginRegistry) -> list[PipelineComponent]:
    return [each for each, _ in registry.components("omni_pipelines") if isinstance(each, PipelineComponent)]
