"""Discovery of plugins: each is imported and asked by itself, so that a broken one is recorded and the program goes on.

pluggy's own entry-point loader is not used because it isolates nothing and knows no API levels (:mod:`omni_core.plugins.levels`).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from fnmatch import fnmatch
from types import ModuleType
from typing import Any

from attrs import define, field, frozen

from omni_core.errors import did_you_mean
from omni_core.hookspecs import HOOKS, Component, Hook
from omni_core.plugins.installed import EntryPoint, entry_points
from omni_core.plugins.isolation import PluginFault, isolated
from omni_core.plugins.levels import Levels, Offer, check_known, complaint, declared_levels

ENTRY_POINT_GROUP = "omni"

APIS_GROUP = "omni.apis"
"""A distribution whose Python interface has a level of its own names it here: ``mine = "my_models.api [mine-1]"``."""

SLOW_IMPORT = 0.1
"""Seconds of import above which a plugin is reported as slow: every command of ``omni`` waits for it."""


class PluginStatus(Enum):
    """State of an installed plugin."""

    LOADED = "loaded"
    DISABLED = "disabled"
    BROKEN = "broken"
    INCOMPATIBLE = "incompatible"


@define(eq=False)
class PluginRecord:
    """One installed plugin and its state.

    Attributes:
        name: of its entry point.
        distribution, version, module: where it comes from.
        reason: one line on why it is not loaded; empty if it is.
        traceback: of a broken one.
        components: what it provides, by hook.
        levels: the API levels that its entry point declares, by hook.
        hooks: those that it defines, by name: kinds of components that other plugins provide.
        warnings: mistakes that a loaded plugin makes, a line each.
        seconds: how long its import and its hooks took.
    """

    name: str
    distribution: str
    version: str
    module: str
    status: PluginStatus = PluginStatus.LOADED
    reason: str = ""
    traceback: str = ""
    components: dict[str, list[Component]] = field(factory=dict)
    levels: Levels = field(factory=dict)
    hooks: dict[str, Hook] = field(factory=dict)
    warnings: list[str] = field(factory=list)
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """Plugin, distribution and version, for messages."""
        return f"{self.name!r} of {self.distribution} {self.version}"


def discover(allowed: str | None, denied: str | None) -> list[PluginRecord]:
    """Find every installed plugin, and load those that are allowed and work.

    All are imported before any is asked for components, because one may provide components of a kind that another defines.

    Args:
        allowed: the value of ``OMNI_PLUGINS``: comma-separated names or patterns, empty for none; ``None`` allows all.
        denied: the value of ``OMNI_DISABLE_PLUGINS``, likewise; it wins.
    """
    records, modules = [], []
    points = list(entry_points(ENTRY_POINT_GROUP, APIS_GROUP))
    apis = _apis(points)
    for point in points:
        if point.group == APIS_GROUP:
            continue
        record = PluginRecord(
            point.name, point.distribution, point.version, module=point.value.partition("[")[0].strip()
        )
        reason = _why_disabled(point.name, allowed, denied)
        if reason:
            record.status, record.reason = PluginStatus.DISABLED, reason
        elif (module := _import(record, point.value, apis)) is not None:
            modules.append((record, module))
        records.append(record)
    records.sort(key=lambda record: (record.name, record.distribution))
    _refuse_second_definitions(records)
    for defines in (True, False):  # what defines a kind must work before others provide components of it
        hooks = defined_hooks(records)
        offers = {**apis, **_offers(records)}
        for record, module in modules:
            if bool(record.hooks) is defines and record.status is PluginStatus.LOADED:
                _load(record, module, hooks, offers)
    return records


def defined_hooks(records: Iterable[PluginRecord]) -> dict[str, Hook]:
    """Return the hooks of the core, and those that plugins which work define, by name."""
    working = [record for record in records if record.status is PluginStatus.LOADED]
    return {**HOOKS, **{name: hook for record in working for name, hook in record.hooks.items()}}


def _apis(points: Iterable[EntryPoint]) -> dict[str, Offer]:
    """Return the levels of interfaces that distributions offer. One that cannot be read is left out: what declares it does not load."""
    offers = {name: Offer(hook.level) for name, hook in HOOKS.items()}
    for point in points:
        name = f"omni_{point.name}"
        if point.group == APIS_GROUP and name not in HOOKS:
            with suppress(ValueError):
                for level in declared_levels(point.value).get(name, ()):
                    offers[name] = Offer(level, f"{point.distribution} ({point.version} is installed)")
    return offers


def _offers(records: Iterable[PluginRecord]) -> dict[str, Offer]:
    """Return the levels of the hooks that plugins which work define."""
    working = [record for record in records if record.status is PluginStatus.LOADED]
    return {
        name: Offer(hook.level, f"{record.distribution} ({record.version} is installed)")
        for record in working
        for name, hook in record.hooks.items()
    }


def _why_disabled(name: str, allowed: str | None, denied: str | None) -> str:
    def matches(patterns: str) -> bool:
        return any(fnmatch(name, pattern.strip()) for pattern in patterns.split(",") if pattern.strip())

    if denied and matches(denied):
        return "OMNI_DISABLE_PLUGINS names it"
    if allowed is not None and not matches(allowed):
        return "OMNI_PLUGINS does not name it"
    return ""


def _import(record: PluginRecord, entry_point: str, offers: Mapping[str, Offer]) -> ModuleType | _Unimportable | None:
    """Import a plugin that may be compatible, and note the hooks that it defines. What it raises stays in its record."""
    began = time.perf_counter()
    try:
        with isolated():
            record.levels = declared_levels(entry_point)
            record.reason = complaint(record.levels, record.distribution, record.version, offers)
            if record.reason:
                record.status = PluginStatus.INCOMPATIBLE
                return None
            module = importlib.import_module(record.module)
            record.hooks = _definitions(module)
            return module
    except PluginFault as fault:
        if record.levels.keys() <= offers.keys():
            _break(record, fault)
            return None
        return _Unimportable(fault)  # perhaps because of another level of the plugin that defines the kind
    finally:
        record.seconds = time.perf_counter() - began


@frozen
class _Unimportable:
    """The import of a plugin that provides components of a kind that the core does not know has failed."""

    fault: PluginFault


def _definitions(module: ModuleType) -> dict[str, Hook]:
    """Return the hooks whose specifications are in the package of a plugin's module."""
    package = module.__name__.partition(".")[0]
    marked = [each for each in vars(module).values() if isinstance(getattr(each, "omni_spec", None), Hook)]
    return {each.__name__: each.omni_spec for each in marked if each.__module__.partition(".")[0] == package}


def _refuse_second_definitions(records: list[PluginRecord]) -> None:
    """Break the plugins that define a hook of the core, or one that another plugin defines too."""
    for name in {name for record in records for name in record.hooks}:
        owners = [record for record in records if name in record.hooks]
        for record in owners if name in HOOKS or len(owners) > 1 else ():
            others = [each.title for each in owners if each is not record] or ["the core"]
            record.status, record.reason = (
                PluginStatus.BROKEN,
                f"it defines the hook {name!r}, as {' and '.join(others)} does",
            )


def _break(record: PluginRecord, fault: PluginFault) -> None:
    record.status, record.reason, record.traceback = PluginStatus.BROKEN, str(fault), fault.traceback


def _load(
    record: PluginRecord, module: ModuleType | _Unimportable, hooks: dict[str, Hook], offers: Mapping[str, Offer]
) -> None:
    """Ask an imported plugin for its components. What it raises stays in its record."""
    began = time.perf_counter()
    try:
        with isolated():
            check_known(record.levels, offers)
            record.reason = complaint(record.levels, record.distribution, record.version, offers)
            if record.reason:
                record.status = PluginStatus.INCOMPATIBLE
                return
        if isinstance(module, _Unimportable):
            _break(record, module.fault)
            return
        with isolated():
            record.components = _components(module, hooks)
            record.warnings = list(_warnings(record, module, hooks))
    except PluginFault as fault:
        _break(record, fault)
    record.seconds += time.perf_counter() - began
    if record.seconds > SLOW_IMPORT:
        record.warnings.append(
            f"its import takes {record.seconds:.1f} s, for which every command waits; {record.module} must import nothing heavy"
        )


def _components(module: ModuleType, hooks: dict[str, Hook]) -> dict[str, list[Component]]:
    """Call the hooks of a plugin and check what they return."""
    found = {}
    for name in _marked(module):
        if name not in hooks:
            raise AttributeError(f"unknown hook {name!r}{did_you_mean(name, hooks)}")
        components = _checked(hooks[name], getattr(module, name)())
        if components:
            found[name] = components
    return {name: found[name] for name in hooks if name in found}


def _checked(hook: Hook, returned: Any) -> list[Component]:
    wanted = f"it must return a list of {hook.component.__name__}"
    if returned is None:
        return []
    if isinstance(returned, str | Component) or not hasattr(returned, "__iter__"):
        raise TypeError(f"{hook.name} returned {returned!r}; {wanted}")
    components = list(returned)
    for each in components:
        if not isinstance(each, hook.component):
            raise TypeError(f"{hook.name} returned a {type(each).__name__} ({each!r:.80}); {wanted}")
    return components


def _marked(module: ModuleType) -> list[str]:
    """Names of the functions that carry the marker ``@hookimpl``."""
    return [name for name in dir(module) if isinstance(getattr(getattr(module, name), "omni_impl", None), dict)]


def _warnings(record: PluginRecord, module: ModuleType, hooks: dict[str, Hook]) -> Iterator[str]:
    marked = _marked(module)
    for name, hook in hooks.items():
        given = getattr(module, name, None)
        if name not in marked and callable(given) and not hasattr(given, "omni_spec"):
            yield f"{name} is not marked with @hookimpl, so it is not called"
        if name in record.levels and name not in marked:
            yield f"its entry point declares {hook.plural}, and its module has no hook {name}"
    unsaid = [f"{hooks[name].plural}-{hooks[name].level}" for name in record.components if name not in record.levels]
    if unsaid:
        yield f"its entry point does not declare API levels; write: {record.module} [{', '.join(unsaid)}]"
    if not record.components and not record.hooks:
        yield "it provides nothing"
