"""Finding and importing plugins, each by itself: a broken one is recorded with its traceback and the program goes on.

pluggy calls the hooks; its own entry-point loader is not used because it isolates nothing and knows no API levels (see ``levels``).
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterable, Iterator
from enum import Enum
from fnmatch import fnmatch
from importlib.metadata import EntryPoint, distributions
from types import ModuleType

import pluggy
from attrs import define, field

from omni_core import hookspecs
from omni_core.hookspecs import HOOKS, Component
from omni_core.plugins.levels import Supports, complaint, fits, parsed, read_declaration

ENTRY_POINT_GROUP = "omni"


class PluginStatus(Enum):
    """What became of an installed plugin."""

    LOADED = "loaded"
    DISABLED = "disabled"
    BROKEN = "broken"
    INCOMPATIBLE = "incompatible"


@define(eq=False)
class PluginRecord:
    """One installed plugin and what became of it.

    ``reason`` is one line; ``traceback`` is there for broken ones. ``supports`` are the API levels that it declares, by hook.
    """

    name: str
    distribution: str
    version: str
    module: str
    status: PluginStatus = PluginStatus.LOADED
    reason: str = ""
    traceback: str = ""
    components: dict[str, list[Component]] = field(factory=dict)
    supports: Supports = field(factory=dict)

    @property
    def title(self) -> str:
        """The plugin with its distribution, for messages."""
        return f"{self.name!r} of {self.distribution} {self.version}"


def discover(allowed: str | None, denied: str | None) -> list[PluginRecord]:
    """Every installed plugin, loaded where it may and can be.

    Args:
        allowed: the value of ``OMNI_PLUGINS``: comma-separated names or patterns, empty for none; ``None`` allows all.
        denied: the value of ``OMNI_DISABLE_PLUGINS``, likewise; it wins.
    """
    records = []
    for point, distribution, version in _entry_points():
        record = PluginRecord(point.name, distribution, version, point.value)
        reason = _why_disabled(point.name, allowed, denied)
        if reason:
            record.status, record.reason = PluginStatus.DISABLED, reason
        else:
            _load(record)
        records.append(record)
    return sorted(records, key=lambda record: (record.name, record.distribution))


def _entry_points() -> Iterator[tuple[EntryPoint, str, str]]:
    """Entry points with their distributions. One found twice on the path (first wins there) counts once."""
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


def _load(record: PluginRecord) -> None:
    """Import one plugin and ask it for its components; whatever it raises stays in its record."""
    try:
        declaration = read_declaration(record.module)
        record.supports = declaration.supports or {}
        if not _agrees(record, declaration.hooks):
            return
        module = importlib.import_module(record.module)
        if declaration.supports is None and getattr(module, "supports", None) is not None:
            record.supports = parsed(module.supports)
        if _agrees(record, [hook for hook in HOOKS if hasattr(module, hook)]):
            record.components = _components(module)
    except BaseException as error:  # a plugin that raises SystemExit at import must not end the program
        if isinstance(error, KeyboardInterrupt):
            raise
        record.status = PluginStatus.BROKEN
        record.reason = f"{type(error).__name__}: {error}"
        record.traceback = traceback.format_exc()


def _agrees(record: PluginRecord, hooks: Iterable[str]) -> bool:
    """Whether the plugin's hooks have levels that it supports. Of one that shows no hooks, some level must fit."""
    shown = list(hooks)
    if not shown and any(fits(hook, levels) for hook, levels in record.supports.items()):
        return True
    record.reason = complaint(record.supports, shown or record.supports, record.distribution, record.version)
    if record.reason:
        record.status = PluginStatus.INCOMPATIBLE
    return not record.reason


def _components(module: ModuleType) -> dict[str, list[Component]]:
    """What a plugin's hooks return, checked to be components."""
    manager = pluggy.PluginManager("omni")
    manager.add_hookspecs(hookspecs)
    manager.register(module)
    manager.check_pending()
    found = {}
    for hook in HOOKS:
        returned = getattr(manager.hook, hook)()
        items = [item for result in returned for item in result]
        for item in items:
            if not isinstance(item, Component):
                raise TypeError(f"{hook} returned a {type(item).__name__}; it must return a list of Component")
        if items:
            found[hook] = items
    return found
