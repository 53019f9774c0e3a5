"""API levels: which version of each kind of hook a plugin works with, read from its entry point before anything is imported.

A level belongs to a kind of hook, so that a change of the relay contract leaves a plugin alone that provides a command. The entry
point names each level that the plugin works with as an extra: ``my-relay = "my_relay.plugin [relays-1, relays-2]"``. A kind may be
one that another plugin defines (:func:`omni_core.hookspecs.hookspec`), or a Python interface that a distribution offers in an entry
point of the group ``omni.apis``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import frozen

from omni_core import __version__
from omni_core.errors import did_you_mean

Levels = dict[str, tuple[int, ...]]
"""By hook: the API levels that a plugin works with, in ascending order."""


def declared_levels(entry_point: str) -> Levels:
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


@frozen
class Offer:
    """The level of a kind of hook, or of a Python interface, and what offers it: the core unless it is said."""

    level: int
    by: str = f"omni-core ({__version__} is installed)"


def check_known(levels: Levels, offers: Mapping[str, Offer]) -> None:
    """Raise ValueError if a kind is neither of the core nor of what is installed."""
    for name, numbers in levels.items():
        if name not in offers:
            kind, kinds = plural_of(name), [plural_of(each) for each in offers]
            raise ValueError(
                f"[{kind}-{numbers[0]}] of its entry point: this core ({__version__}) has no hook for {kind}"
                f"{did_you_mean(kind, kinds)}; no plugin that works defines one"
            )


def complaint(levels: Levels, distribution: str, version: str, offers: Mapping[str, Offer]) -> str:
    """Return why a plugin cannot be used, and which distribution to upgrade; empty if it can.

    Args:
        levels: what it declares. Kinds that are not in ``offers`` are ignored.
        distribution: that of the plugin.
        version: that of the plugin.
        offers: the kinds that there are.
    """
    wrong = {name: each for name, each in levels.items() if name in offers and offers[name].level not in each}
    if not wrong:
        return ""
    upgrades = {
        offers[name].by if min(each) > offers[name].level else f"{distribution} ({version} is installed)"
        for name, each in wrong.items()
    }
    offered = [
        f"{'this core' if by.startswith('omni-core ') else by.partition(' ')[0]} offers "
        + described_levels({name: (offers[name].level,) for name in wrong if offers[name].by == by})
        for by in dict.fromkeys(offers[name].by for name in wrong)
    ]
    return f"it is made for {described_levels(wrong)}, {', '.join(offered)}; upgrade {' and '.join(sorted(upgrades))}"


def plural_of(hook: str) -> str:
    """Return the kind of a hook as entry points write it."""
    return hook.removeprefix("omni_").replace("_", "-")


def described_levels(levels: Levels) -> str:
    """Return levels in words: ``API level 1 or 2 of relays and pipelines, 1 of commands``."""
    if not levels:
        return "no API level"
    kinds: dict[tuple[int, ...], list[str]] = {}
    for hook, each in levels.items():
        kinds.setdefault(each, []).append(plural_of(hook))
    each_level = (f"{' or '.join(map(str, each))} of {' and '.join(names)}" for each, names in kinds.items())
    return f"API level {', '.join(each_level)}"
