"""API levels: which version of each kind of hook a plugin works with, read from its entry point before anything is imported.

A level belongs to a kind of hook, so that a change of the relay contract leaves a plugin alone that provides a command. The entry
point names each level that the plugin works with as an extra: ``my-relay = "my_relay.plugin [relays-1, relays-2]"``. A kind may be
one that another plugin defines (:func:`omni_core.hookspecs.hookspec`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from omni_core import __version__
from omni_core.errors import did_you_mean
from omni_core.hookspecs import HOOKS, Hook

Levels = dict[str, tuple[int, ...]]
"""By hook: the API levels that a plugin works with, in ascending order."""

_CORE = f"omni-core ({__version__} is installed)"


def declared(entry_point: str) -> Levels:
    """Return the levels that the value of an entry point names.

    Raises:
        ValueError: an extra is no kind with a level.
    """
    found: dict[str, set[int]] = {}
    bracketed = re.search(r"\[(.*)\]\s*$", entry_point)
    for extra in filter(None, map(str.strip, bracketed[1].split(",") if bracketed else ())):
        kind, dash, level = extra.replace("-", "_").rpartition("_")
        if not dash or not level.isdecimal():
            raise ValueError(f"[{extra}] of its entry point is no API level; write one such as [relays-1]")
        found.setdefault(f"omni_{kind}", set()).add(int(level))
    return {hook: tuple(sorted(levels)) for hook, levels in found.items()}


def check_known(levels: Levels, hooks: Mapping[str, Hook]) -> None:
    """Raise ValueError if a kind is neither of the core nor defined by a plugin."""
    for name, numbers in levels.items():
        if name not in hooks:
            kind, kinds = plural_of(name), [hook.plural for hook in hooks.values()]
            raise ValueError(
                f"[{kind}-{numbers[0]}] of its entry point: this core ({__version__}) has no hook for {kind}"
                f"{did_you_mean(kind, kinds)}; no plugin that works defines one"
            )


def complaint(
    levels: Levels,
    distribution: str,
    version: str,
    hooks: Mapping[str, Hook] = HOOKS,
    owners: Mapping[str, str] | None = None,
) -> str:
    """Return why a plugin cannot be used, and which distribution to upgrade; empty if it can.

    Args:
        levels: what it declares. Kinds that are not in ``hooks`` are ignored.
        distribution: that of the plugin.
        version: that of the plugin.
        hooks: the kinds that there are.
        owners: by hook that a plugin defines, the distribution of that plugin.
    """
    wrong = {name: each for name, each in levels.items() if name in hooks and hooks[name].level not in each}
    if not wrong:
        return ""
    owner = {name: (owners or {}).get(name, _CORE) for name in wrong}
    upgrades = {
        owner[name] if min(each) > hooks[name].level else f"{distribution} ({version} is installed)"
        for name, each in wrong.items()
    }
    offers = [
        f"{'this core' if by is _CORE else by.partition(' ')[0]} offers "
        + described({name: (hooks[name].level,) for name in wrong if owner[name] == by})
        for by in dict.fromkeys(owner.values())
    ]
    return f"it is made for {described(wrong)}, {', '.join(offers)}; upgrade {' and '.join(sorted(upgrades))}"


def plural_of(hook: str) -> str:
    """Return the kind of a hook as entry points write it."""
    return hook.removeprefix("omni_").replace("_", "-")


def described(levels: Levels) -> str:
    """Return levels in words: ``API level 1 or 2 of relays and pipelines, 1 of commands``."""
    if not levels:
        return "no API level"
    kinds: dict[tuple[int, ...], list[str]] = {}
    for hook, each in levels.items():
        kinds.setdefault(each, []).append(plural_of(hook))
    each_level = (f"{' or '.join(map(str, each))} of {' and '.join(names)}" for each, names in kinds.items())
    return f"API level {', '.join(each_level)}"
