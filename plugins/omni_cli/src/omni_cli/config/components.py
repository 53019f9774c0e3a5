"""The components that a config names, and the arguments that it gives them: checked against their sources, without any import of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from omni_cli.config.annotations import Kind, kinds
from omni_cli.deploy.signatures import definition, parameters
from omni_core.api import (
    ConfigError,
    OmniError,
    PipelineConfig,
    PluginRegistry,
    SimpleScheduler,
    StageConfig,
    did_you_mean,
)
from omni_core.runtime_api import (
    BATCHING_ARGUMENTS,
    CONTEXT_ARGUMENTS,
    STAGE_PARTS,
    launcher_reference,
    reference_problem,
    relay_reference,
    resolve_part,
    scheduler_of,
)

_PROJECTIONS = "omni_payload_projections"
_FUNCTIONS = ("route_fn", "wait_for_fn", "merge_fn", "expand_fn", "stream_done_to_fn")
_GIVEN = ("runner", "feedback", "factory")
"""Parameters of parts that other parts are given by."""


def component_problems(config: PipelineConfig, registry: PluginRegistry) -> Iterator[str]:
    """Yield a line for each component that ``config`` names and that is not installed or not where it is said to be, and for each
    argument that no part of its stage takes, or that is of a wrong type.

    The modules of a stage on another host are that host's, and not looked for here.
    """
    for check in (check_relays, launcher_reference):
        try:
            check(config, registry)
        except OmniError as error:
            yield from str(error).splitlines()
    for stage in config.stages:
        yield from _stage_problems(stage, registry)
    for name in ("terminal_stages_fn", "placement_fn", "fetch_fn"):
        yield from _reference_problems(name, getattr(config, name), registry)
        for part, settings in config.parts.items():
            yield from _reference_problems(f"parts.{part}.{name}", getattr(settings, name), registry)


def unchecked(config: PipelineConfig, registry: PluginRegistry) -> Iterator[str]:
    """Yield a line for each part whose source is not to be found, so that the arguments of its stage are not checked."""
    for stage in config.stages:
        path = f"stages[{stage.name}].factory_args"
        if stage.factory_args and stage.hosts:
            yield f"{path}: not checked, because the stage runs on the host {', '.join(stage.hosts)!r}"
        elif stage.factory_args:
            found = {name: each for name, each, _ in _parts(stage, registry) if each is not None}
            for name, reference in found.items():
                if definition(reference) is None:
                    yield f"{path}: not checked for the {name} {reference!r}, because its source cannot be read"


def _parts(stage: StageConfig, registry: PluginRegistry) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield each part of a stage, with its reference or the problem of finding it."""
    for part in STAGE_PARTS:
        try:
            name = scheduler_of(stage, registry) if part == "scheduler" else getattr(stage, part)
            yield part, resolve_part(stage, part, name, registry), None
        except OmniError as error:
            yield part, None, str(error)


def _stage_problems(stage: StageConfig, registry: PluginRegistry) -> Iterator[str]:
    path, references, is_here = f"stages[{stage.name}]", list[str](), not stage.hosts
    broken = False
    for part, reference, why in _parts(stage, registry):
        if why is None and is_here and reference is not None:
            why = reference_problem(reference)
            why = None if why is None else f"{path}.{part}: {reference!r}: {why}"
            references += [reference] if why is None else []
        if why is not None:
            broken = True
            yield why
    functions = {name: getattr(stage, name) for name in _FUNCTIONS}
    functions |= {f"project_payload.{to}": each for to, each in stage.project_payload.items()}
    for name, each in functions.items():
        yield from _reference_problems(f"{path}.{name}", each, registry, is_here=is_here)
    for module in stage.preload if is_here else ():
        why = reference_problem(f"{module}:__name__")
        if why is not None and why.endswith("does not exist"):
            yield f"{path}.preload: {why}"
    if is_here and references:
        yield from _argument_problems(stage, references, everything=not broken)


def _reference_problems(
    path: str, name: str | None, registry: PluginRegistry, *, is_here: bool = True
) -> Iterator[str]:
    """Yield the problem of a function that a config names, if it has one."""
    if name is None:
        return
    try:
        reference = registry.resolve_reference(_PROJECTIONS, name)
        why = reference_problem(reference) if is_here else None
    except OmniError as error:
        yield f"{path}: {error}"
        return
    if why is not None:
        yield f"{path}: {reference!r}: {why}"


def _argument_problems(stage: StageConfig, references: list[str], *, everything: bool) -> Iterator[str]:
    """Yield a line for each argument that no part takes (if ``everything`` that may take it is known), or of a wrong type."""
    path = f"stages[{stage.name}].factory_args"
    taken = {each: kinds(each) or {} for each in references}
    names: set[str] | None = set(BATCHING_ARGUMENTS if stage.factory is not None else ())
    for each in references:
        only = only_parameters(each)
        names = None if names is None or only is None else names | only
    own = {name for each in taken.values() for name in each}
    try:
        batching = {
            name: stage.factory_args[name]
            for name in BATCHING_ARGUMENTS
            if name in stage.factory_args and name not in own
        }
        SimpleScheduler.of_batches(list, **batching)
    except ConfigError as error:
        yield f"{path}.{error}"
    for name, value in stage.factory_args.items():
        if names is not None and everything and name not in names:
            hint = did_you_mean(name, sorted(names - {*CONTEXT_ARGUMENTS, *_GIVEN}), listing="it takes")
            yield f"{path}.{name}: this stage has no such parameter{hint}"
        for reference, known in taken.items():
            kind: Kind | None = known.get(name)
            if kind is not None and not kind.accepts(value):
                yield f"{path}.{name}: must be {kind.name}, is {value!r} ({reference})"
                break


def only_parameters(reference: str) -> set[str] | None:
    """Return the names of what a callable takes, if its source shows that it takes nothing else; otherwise ``None``.

    Functions with decorators, classes with decorators and those without an ``__init__`` may take more than is written.
    """
    found = definition(reference)
    if found is None:
        return None
    node = found[1]
    own = definition(f"{reference}.__init__") if isinstance(node, ast.ClassDef) else found
    if own is None or not isinstance(own[1], ast.FunctionDef) or own[1].args.kwarg is not None:
        return None
    decorators = {ast.unparse(each) for each in (*node.decorator_list, *own[1].decorator_list)}
    return None if decorators - {"classmethod", "staticmethod"} else set(parameters(reference) or ())


def check_relays(config: PipelineConfig, registry: PluginRegistry) -> None:
    """Check that the relays that ``config`` names are installed, if it has more than one process.

    Raises:
        PluginError: one is not.
    """
    if len({stage.process for stage in config.stages}) > 1:
        own = {each.relay.backend: each.name for each in config.stages if each.relay is not None and each.relay.backend}
        for name in sorted({config.relay_backend, *own}):
            relay_reference(config, registry, name, own.get(name))
