"""Discovery of plugins: each is imported and asked by itself, so that a broken one is recorded and the program goes on.

pluggy's own entry-point loader is not used because it isolates nothing and knows no API levels (:mod:`omni_core.plugins.levels`).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from enum import Enum
from fnmatch import fnmatch
from importlib.metadata import EntryPoint, distributions
from types import ModuleType
from typing import Any

from attrs import define, field

from omni_core.errors import did_you_mean
from omni_core.hookspecs import HOOKS, Component, Hook
from omni_core.plugins.isolation import PluginFault, isolated
from omni_core.plugins.levels import Levels, complaint, declared

ENTRY_POINT_GROUP = "omni"

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
        name: of its entry point. distribution, version, module: where it comes from.
        reason: one line on why it is not loaded; empty if it is.
        traceback: of a broken one.
        components: what it provides, by hook.
        levels: the API levels that its entry point declares, by hook.
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
    warnings: list[str] = field(factory=list)
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """Plugin, distribution and version, for messages."""
        return f"{self.name!r} of {self.distribution} {self.version}"


def discover(allowed: str | None, denied: str | None) -> list[PluginRecord]:
    """Find every installed plugin, and load those that are allowed and work.

    Args:
        allowed: the value of ``OMNI_PLUGINS``: comma-separated names or patterns, empty for none; ``None`` allows all.
        denied: the value of ``OMNI_DISABLE_PLUGINS``, likewise; it wins.
    """
    records = []
    for point, distribution, version in _entry_points():
        record = PluginRecord(point.name, distribution, version, point.value.partition("[")[0].strip())
        reason = _why_disabled(point.name, allowed, denied)
        if reason:
            record.status, record.reason = PluginStatus.DISABLED, reason
        else:
            _load(record, point.value)
        records.append(record)
    return sorted(records, key=lambda record: (record.name, record.distribution))


def _entry_points() -> Iterator[tuple[EntryPoint, str, str]]:
    """Yield entry points with their distributions. Of a distribution that is on the path twice, the first is used."""
    seen = set()
    for distribution in distributions():
        name = distribution.metadata["Name"] or "unknown"
        if name in seen:
            continue
        seen.add(name)
        for point in distribution.entry_points.select(group=ENTRY_POINT_GROUP):
            yield point, name, distribution.version


def _why_disabled(name: str, allowed: str | None, denied: str | None) -> str:
    def matches(patterns: str) -> bool:
        return any(fnmatch(name, pattern.strip()) for pattern in patterns.split(",") if pattern.strip())

    if denied and matches(denied):
        return "OMNI_DISABLE_PLUGINS names it"
    if allowed is not None and not matches(allowed):
        return "OMNI_PLUGINS does not name it"
    return ""


def _load(record: PluginRecord, entry_point: str) -> None:
    """Import one plugin and ask it for its components. What it raises stays in its record."""
    began = time.perf_counter()
    try:
        with isolated():
            record.levels = declared(entry_point)
            record.reason = complaint(record.levels, record.distribution, record.version)
            if record.reason:
                record.status = PluginStatus.INCOMPATIBLE
                return
            module = importlib.import_module(record.module)
            record.components = _components(module)
            record.warnings = list(_warnings(record, module))
    except PluginFault as fault:
        record.status, record.reason, record.traceback = PluginStatus.BROKEN, str(fault), fault.traceback
    record.seconds = time.perf_counter() - began
    if record.seconds > SLOW_IMPORT:
        record.warnings.append(
            f"its import takes {record.seconds:.1f} s, for which every command waits; {record.module} must import nothing heavy"
        )


def _components(module: ModuleType) -> dict[str, list[Component]]:
    """Call the hooks of a plugin and check what they return."""
    found = {}
    for name in _marked(module):
        if name not in HOOKS:
            raise AttributeError(f"unknown hook {name!r}{did_you_mean(name, HOOKS)}")
        components = _checked(HOOKS[name], getattr(module, name)())
        if components:
            found[name] = components
    return {name: found[name] for name in HOOKS if name in found}


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


def _warnings(record: PluginRecord, module: ModuleType) -> Iterator[str]:
    marked = _marked(module)
    for name in HOOKS:
        if name not in marked and callable(getattr(module, name, None)):
            yield f"{name} is not marked with @hookimpl, so it is not called"
        if name in record.levels and name not in marked:
            yield f"its entry point declares {HOOKS[name].plural}, and its module has no hook {name}"
    unsaid = [f"{HOOKS[name].plural}-{HOOKS[name].level}" for name in record.components if name not in record.levels]
    if unsaid:
        yield f"its entry point does not declare API levels; write: {record.module} [{', '.join(unsaid)}]"
    if not record.components:
        yield "it provides nothing"
