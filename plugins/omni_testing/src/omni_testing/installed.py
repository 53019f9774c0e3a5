"""The conformance suites for whatever is installed, found through entry points.

``omni plugins check --full`` and a project's own tests take this one way. A test file needs two lines::

    from omni_testing.installed import suites
    globals().update(suites())
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from omni_core.api import Component, PipelineComponent, PipelineConfig, PluginError, PluginRegistry, load, load_plugins
from omni_core.runtime_api import Defect, Hook, PluginFault, PluginRecord, PluginStatus, isolated, problem_of
from omni_testing import PipelineStructureConformance, PluginConformance, RelayConformance

Attributes = dict[str, Any]

_WITHOUT_SUITES = ("omni_kernels", "omni_commands", "omni_services")
"""Hooks of which ``PluginConformance`` tests all that can be tested."""


def suites(only: str | None = None, registry: PluginRegistry | None = None) -> dict[str, type]:
    """Return a test class for every plugin, and for every component that can be tested, by class name.

    A component's own suite (``Component.conformance``) is used where it names one; several may name the same, which then runs
    once. Relays need none; of a pipeline without one, only what needs no request is tested. The attribute ``about`` of each class
    names what it tests.

    Args:
        only: the name of one plugin.
        registry: the plugins; by default those that are installed.

    Raises:
        PluginError: no plugin has that name.
    """
    registry = registry or load_plugins()
    records = registry.records
    chosen = [each for each in records if only in (None, each.name) and each.status is not PluginStatus.DISABLED]
    if only is not None and not chosen:
        names = ", ".join(each.name for each in records) or "none"
        raise PluginError(f"no plugin is called {only!r}, or it is disabled; installed are: {names}")
    found: dict[str, type] = {}
    for record in chosen:
        for made in _of_plugin(record, registry.hooks):
            found[made.__name__] = made
    return found


def untested(only: str | None = None, registry: PluginRegistry | None = None) -> list[str]:
    """Return the components that a suite could test but that name none, as words."""
    registry = registry or load_plugins()
    return [
        _about(registry.hooks[hook], component, record)
        for record in registry.records
        if only in (None, record.name)
        for hook, components in record.components.items()
        for component in components
        if hook not in _WITHOUT_SUITES and _suite_of(hook, component) is None
    ]


def _of_plugin(record: PluginRecord, hooks: Mapping[str, Hook]) -> list[type]:
    about = f"plugin {record.name} ({record.distribution})"
    made = [_class(f"plugin {record.name}", PluginConformance, {"about": about, "entry_point": record.name})]
    run: set[str | None] = set()
    for hook, components in record.components.items():
        for component in components:
            suite, problem = _suite_of(hook, component), problem_of(component)
            about = _about(hooks[hook], component, record)
            if suite is None:
                continue
            wrong: str | None = problem if isinstance(problem, Defect) else None
            if problem is None and (fault := _import_fault(component.target)):
                wrong = f"its target {component.target!r} cannot be imported: {fault}"
            if wrong is not None:
                suite = _failed(wrong)
            elif component.conformance in run:
                continue
            elif problem is not None:
                suite = _skipped(problem)
            elif component.conformance is not None:
                run.add(component.conformance)
            made.append(_class(f"{hooks[hook].kind} {component.name}", suite, _attributes(hook, component, about)))
    return made


def _import_fault(target: str) -> str | None:
    """Import a target before its suite does, which may do so in many processes, each with a traceback."""
    try:
        with isolated():
            load(target)
    except PluginFault as fault:
        return str(fault)
    return None


def _suite_of(hook: str, component: Component) -> type | None:
    """Return the suite that a component is tested with."""
    if component.conformance is not None:
        return _loaded(component.conformance)
    if hook == "omni_relays":
        return RelayConformance
    if isinstance(component, PipelineComponent) and component.default_model is not None:
        return PipelineStructureConformance
    return None


def _attributes(hook: str, component: Component, about: str) -> Attributes:
    """Return the attributes of a component's class beyond those of its suite."""
    if component.conformance is not None:
        return {"about": about}
    if isinstance(component, PipelineComponent):
        pipeline = component

        def config(self: Any) -> PipelineConfig:
            assert pipeline.default_model is not None
            model, _ = load(pipeline.default_model)()
            made: PipelineConfig = load(pipeline.target)(model)
            return made

        return {"about": about, "config": config}
    return {"about": about, "relay": component.target}


def _loaded(reference: str) -> type:
    """Return the suite that a reference names; one that fails, with the reason, if it cannot be imported."""
    try:
        with isolated():
            suite: type = load(reference)
    except PluginFault as fault:
        return _failed(f"its suite {reference!r} cannot be imported: {fault}")
    return suite


def _failed(reason: str) -> type:
    """Return a suite of one test, which fails with a line that says why its component cannot be tested."""

    class Failed:
        def test_it_can_be_tested(self) -> None:
            pytest.fail(reason, pytrace=False)

    return Failed


def _skipped(problem: str) -> type:
    """Return a suite of one test that says why its component cannot be tested here."""

    class Skipped:
        def test_it_can_work_here(self) -> None:
            pytest.skip(problem)

    return Skipped


def _class(title: str, suite: type, attributes: Attributes) -> type:
    words = re.split(r"[^A-Za-z0-9]+", title)
    name = "Test" + "".join(word[:1].upper() + word[1:] for word in words)
    return type(name, (suite,), {**attributes, "__doc__": attributes["about"]})


def _about(hook: Hook, component: Component, record: PluginRecord) -> str:
    return f"{hook.kind} {component.name} ({record.distribution})"
