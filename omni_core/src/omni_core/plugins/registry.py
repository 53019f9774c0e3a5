"""The registry: components by hook and name, over all plugins that loaded, with errors that name who is at fault."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec

from omni_core.errors import PluginError, did_you_mean
from omni_core.hookspecs import HOOKS, Component, works
from omni_core.plugins.discovery import PluginRecord, PluginStatus, discover
from omni_core.references import normalize


class PluginRegistry:
    """Looks components up by name. Made by :func:`load_plugins`, or from records in tests."""

    def __init__(self, records: list[PluginRecord]) -> None:
        self.records = records

    def components(self, hook: str) -> Iterator[tuple[Component, PluginRecord]]:
        """Every component of a hook with the plugin that provides it, duplicates included."""
        for record in self.records:
            for component in record.components.get(hook, []):
                yield component, record

    def names(self, hook: str) -> list[str]:
        return sorted({component.name for component, _ in self.components(hook)})

    def get(self, hook: str, name: str) -> Component:
        """The component of that name.

        Raises:
            PluginError: nobody provides it, or two plugins do; the message names them and what to do.
        """
        found = [(component, record) for component, record in self.components(hook) if component.name == name]
        kind = HOOKS[hook]
        if len(found) == 1:
            return found[0][0]
        if found:
            owners = " and ".join(f"plugin {record.title}" for _, record in found)
            raise PluginError(
                f"the {kind} {name!r} is provided twice, by {owners}; "
                f"uninstall one, or disable it: OMNI_DISABLE_PLUGINS={found[-1][1].name}"
            )
        raise PluginError(f"no {kind} is called {name!r}{self._hint(hook, name)}")

    def _hint(self, hook: str, name: str) -> str:
        """What might help somebody who asked for a name that nobody provides."""
        return "; ".join([did_you_mean(name, self.names(hook)), *self.suspects()])

    def suspects(self) -> list[str]:
        """A remark for each plugin that is broken or incompatible: it may have provided what is missing."""
        return [
            f"plugin {record.title} is {record.status.value} ({record.reason}) and may have provided it: "
            f"omni plugins show {record.name}"
            for record in self.records
            if record.status in (PluginStatus.BROKEN, PluginStatus.INCOMPATIBLE)
        ]

    def resolve_reference(self, hook: str, value: str) -> str:
        """``package.module:attribute`` for a registered name or for a dotted reference.

        Raises:
            PluginError: ``value`` is a plain name that nobody provides.
        """
        if value in self.names(hook) or not ("." in value or ":" in value):
            return normalize(self.get(hook, value).target)
        return normalize(value)

    def duplicates(self) -> list[str]:
        """One line for every name that more than one plugin provides."""
        lines = []
        for hook, kind in HOOKS.items():
            owners: dict[str, list[str]] = {}
            for component, record in self.components(hook):
                owners.setdefault(component.name, []).append(record.title)
            lines += [f"{kind} {name!r}: {' and '.join(who)}" for name, who in owners.items() if len(who) > 1]
        return lines

    def check(self) -> list[tuple[str, Component, PluginRecord, str | None]]:
        """``(hook, component, plugin, answer)`` for every component, from its requirements and its probe.

        The answer is a probe's: ``None``, a ``Remark``, or what is wrong (``hookspecs.works``).
        """
        return [
            (hook, component, record, answer_of(component))
            for hook in HOOKS
            for component, record in self.components(hook)
        ]


def problem_of(component: Component) -> str | None:
    """Why a component cannot work on this machine, or ``None``."""
    answer = answer_of(component)
    return None if works(answer) else answer


def answer_of(component: Component) -> str | None:
    """What a component's probe says, or why it cannot be asked: ``None``, a ``Remark``, or what is wrong."""
    missing = [name for name in component.requires if find_spec(name) is None]
    if missing:
        return f"module {missing[0]!r} is not installed"
    module = component.target.partition(":")[0]
    try:
        if find_spec(module) is None:
            return f"its target's module {module!r} does not exist"
        return None if component.probe is None else component.probe()
    except Exception as error:
        return f"its probe failed: {type(error).__name__}: {error}"


@lru_cache(maxsize=1)
def load_plugins() -> PluginRegistry:
    """The installed plugins, discovered once per process, as ``OMNI_PLUGINS`` and ``OMNI_DISABLE_PLUGINS`` allow."""
    return PluginRegistry(discover(os.environ.get("OMNI_PLUGINS"), os.environ.get("OMNI_DISABLE_PLUGINS")))
