"""The registry: components by hook and name, over all plugins that loaded, with errors that name who is at fault."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec

from omni_core.errors import PluginError, did_you_mean
from omni_core.hookspecs import Component, works
from omni_core.plugins.discovery import PluginRecord, PluginStatus, defined_hooks, discover
from omni_core.plugins.isolation import PluginFault, isolated
from omni_core.references import normalize, reference_problem


class Defect(str):
    """An answer that blames the plugin itself, not the machine: a target that does not exist, a probe that fails."""

    __slots__ = ()


class PluginRegistry:
    """Look-up of components by name. Made by :func:`load_plugins`, or from records in tests."""

    def __init__(self, records: list[PluginRecord]) -> None:
        self.records = records
        self.hooks = defined_hooks(records)
        """Every hook by name: those of the core, and those that plugins define."""

    def components(self, hook: str) -> Iterator[tuple[Component, PluginRecord]]:
        """Yield every component of a hook with the plugin that provides it, duplicates included."""
        for record in self.records:
            for component in record.components.get(hook, []):
                yield component, record

    def names(self, hook: str) -> list[str]:
        return sorted({component.name for component, _ in self.components(hook)})

    def get(self, hook: str, name: str) -> Component:
        """Return the component of that name.

        Raises:
            PluginError: no plugin provides it, or two do; the message names them and what to do.
        """
        found = [(component, record) for component, record in self.components(hook) if component.name == name]
        if hook not in self.hooks:
            raise PluginError("; ".join([f"no plugin that works defines the hook {hook!r}", *self.suspects(hook)]))
        kind = self.hooks[hook].kind
        if len(found) == 1:
            return found[0][0]
        if found:
            owners = " and ".join(f"plugin {record.title}" for _, record in found)
            raise PluginError(
                f"the {kind} {name!r} is provided twice, by {owners}; "
                f"uninstall one, or disable it: OMNI_DISABLE_PLUGINS={' or '.join(record.name for _, record in found)}"
            )
        hints = "; ".join([did_you_mean(name, self.names(hook)), *self.suspects(hook)])
        raise PluginError(f"no {kind} is called {name!r}{hints}")

    def suspects(self, hook: str) -> list[str]:
        """Return a line for each plugin that is broken or incompatible and may have provided what is missing: it declares no kinds, or
        that of the ``hook``.
        """
        return [
            f"plugin {record.title} is {record.status.value} ({record.reason}) and may have provided it: "
            f"omni plugins show {record.name}"
            for record in self.records
            if record.status in (PluginStatus.BROKEN, PluginStatus.INCOMPATIBLE)
            and (not record.levels or hook in record.levels)
        ]

    def resolve_reference(self, hook: str, value: str) -> str:
        """Return ``package.module:attribute`` for a registered name or for a dotted reference.

        Raises:
            PluginError: ``value`` is a plain name that no plugin provides.
        """
        if value in self.names(hook) or not ("." in value or ":" in value):
            return normalize(self.get(hook, value).target)
        return normalize(value)

    def duplicates(self) -> list[str]:
        """Return one line for every name that more than one plugin provides."""
        lines = []
        for hook in self.hooks:
            owners: dict[str, list[str]] = {}
            for component, record in self.components(hook):
                owners.setdefault(component.name, []).append(record.title)
            twice = {name: who for name, who in owners.items() if len(who) > 1}
            lines += [f"{self.hooks[hook].kind} {name!r}: {' and '.join(who)}" for name, who in twice.items()]
        return lines

    def check(self) -> list[tuple[str, Component, PluginRecord, str | None]]:
        """Return ``(hook, component, plugin, answer)`` for every component, from its requirements, references and probe.

        The answer is a probe's: ``None``, a ``ProbeWarning``, or what is wrong (``hookspecs.works``); a :class:`Defect` if the
        plugin is at fault.
        """
        return [
            (hook, component, record, answer_of(component))
            for hook in self.hooks
            for component, record in self.components(hook)
        ]


def problem_of(component: Component) -> str | None:
    """Return why a component cannot work on this machine, or ``None``."""
    answer = answer_of(component)
    return None if works(answer) else answer


def answer_of(component: Component) -> str | None:
    """Return a probe's answer, or why it cannot be asked: ``None``, a ``ProbeWarning``, or what is wrong."""
    missing = [name for name in component.requires if not _installed(name)]
    if missing:
        return f"module {missing[0]!r} is not installed"
    for field in ("target", "conformance", "default_model", "reference", "interface_from", "fallback"):
        reference = getattr(component, field, None)
        if field == "conformance" and reference is not None and not _installed(reference.split(".")[0].split(":")[0]):
            continue  # suites are for tests: the distribution that has this one need not be here
        if reference is not None and (wrong := reference_problem(reference)):
            return Defect(f"its {field} {reference!r}: {wrong}")
    try:
        with isolated():
            answer = None if component.probe is None else component.probe()
    except PluginFault as fault:
        return Defect(f"its probe failed: {fault}")
    if answer is not None and not isinstance(answer, str):
        return Defect(f"its probe returned {answer!r}; it must return None or a string")
    return answer


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@lru_cache(maxsize=1)
def load_plugins() -> PluginRegistry:
    """Return the installed plugins, discovered once per process, as ``OMNI_PLUGINS`` and ``OMNI_DISABLE_PLUGINS`` allow."""
    return PluginRegistry(discover(os.environ.get("OMNI_PLUGINS"), os.environ.get("OMNI_DISABLE_PLUGINS")))
