"""Finding and importing plugins, each by itself: a broken one is recorded with its traceback and the program goes on.

pluggy calls the hooks; its own entry-point loader is not used because it isolates nothing and knows no API levels.
"""

from __future__ import annotations

import ast
import importlib
import traceback
from collections.abc import Iterator
from enum import Enum
from fnmatch import fnmatch
from importlib.metadata import EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pluggy
from attrs import define, field

from omni_core import hookspecs
from omni_core.hookspecs import API_LEVEL, HOOKS, Component

ENTRY_POINT_GROUP = "omni"


class PluginStatus(Enum):
    """What became of an installed plugin."""

    LOADED = "loaded"
    DISABLED = "disabled"
    BROKEN = "broken"
    INCOMPATIBLE = "incompatible"


@define(eq=False)
class PluginRecord:
    """One installed plugin and what became of it. ``reason`` is one line; ``traceback`` is there for broken ones."""

    name: str
    distribution: str
    version: str
    module: str
    status: PluginStatus = PluginStatus.LOADED
    reason: str = ""
    traceback: str = ""
    components: dict[str, list[Component]] = field(factory=dict)

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
        level = _declared_levels(record.module)
        if level is None or level[0] <= API_LEVEL <= level[1]:
            module = importlib.import_module(record.module)
            level = getattr(module, "supports", None) or (API_LEVEL, API_LEVEL)
        if not level[0] <= API_LEVEL <= level[1]:
            record.status = PluginStatus.INCOMPATIBLE
            older = level[1] < API_LEVEL
            record.reason = (
                f"it works with plugin API levels {level[0]} to {level[1]}, this omni-core offers {API_LEVEL}; "
                f"upgrade {record.distribution if older else 'omni-core'}"
            )
            return
        record.components = _components(module)
    except BaseException as error:  # a plugin that raises SystemExit at import must not end the program
        if isinstance(error, KeyboardInterrupt):
            raise
        record.status = PluginStatus.BROKEN
        record.reason = f"{type(error).__name__}: {error}"
        record.traceback = traceback.format_exc()


def _declared_levels(module: str) -> tuple[int, int] | None:
    """``supports = (low, high)`` read from the module's source without running it; ``None`` if it cannot be seen there."""
    spec = find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    for statement in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "supports" for target in statement.targets
        ):
            low, high = ast.literal_eval(statement.value)
            return int(low), int(high)
    return None


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
