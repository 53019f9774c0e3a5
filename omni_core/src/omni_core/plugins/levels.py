"""API levels: which version of each kind of hook a plugin works with, read from its entry point before anything is imported.

A level belongs to a kind of hook, so that a change of the relay contract leaves a plugin alone that provides a command. The entry
point names each level that the plugin works with as an extra: ``my-relay = "my_relay.plugin [relays-1, relays-2]"``.
"""

from __future__ import annotations

import re

from omni_core import __version__
from omni_core.errors import did_you_mean
from omni_core.hookspecs import HOOKS

Levels = dict[str, tuple[int, ...]]
"""By hook: the API levels that a plugin works with, in ascending order."""


def declared(entry_point: str) -> Levels:
    """Return the levels that the value of an entry point names.

    Raises:
        ValueError: an extra is not a kind of hook with a level.
    """
    hooks = {hook.plural: name for name, hook in HOOKS.items()}
    found: dict[str, set[int]] = {}
    bracketed = re.search(r"\[(.*)\]\s*$", entry_point)
    for extra in filter(None, map(str.strip, bracketed[1].split(",") if bracketed else ())):
        kind, dash, level = extra.replace("_", "-").rpartition("-")
        if not dash or not level.isdecimal():
            raise ValueError(f"[{extra}] of its entry point is no API level; write one such as [relays-1]")
        if kind not in hooks:
            raise ValueError(
                f"[{extra}] of its entry point: this core ({__version__}) has no hook for {kind}{did_you_mean(kind, hooks)}"
            )
        found.setdefault(hooks[kind], set()).add(int(level))
    return {hook: tuple(sorted(levels)) for hook, levels in found.items()}


def complaint(levels: Levels, distribution: str, version: str) -> str:
    """Return why a plugin cannot be used with this core, and which distribution to upgrade; empty if it can."""
    wrong = {hook: each for hook, each in levels.items() if HOOKS[hook].level not in each}
    if not wrong:
        return ""
    upgrades = {
        f"omni-core ({__version__} is installed)"
        if min(each) > HOOKS[hook].level
        else f"{distribution} ({version} is installed)"
        for hook, each in wrong.items()
    }
    offered = described({hook: (HOOKS[hook].level,) for hook in wrong})
    return f"it is made for {described(wrong)}, this core offers {offered}; upgrade {' and '.join(sorted(upgrades))}"


def described(levels: Levels) -> str:
    """Return levels in words: ``API level 1 or 2 of relays and pipelines, 1 of commands``."""
    if not levels:
        return "no API level"
    kinds: dict[tuple[int, ...], list[str]] = {}
    for hook, each in levels.items():
        kinds.setdefault(each, []).append(HOOKS[hook].plural)
    each_level = (f"{' or '.join(map(str, each))} of {' and '.join(names)}" for each, names in kinds.items())
    return f"API level {', '.join(each_level)}"
