"""Advice to install what is missing, from one data file of what known distributions provide. It is read only when something is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from omni_core.plugins.discovery import PluginRecord, PluginStatus


@cache
def advice() -> dict[str, dict[str, list[str]]]:
    """Return what known distributions provide: by kind (``commands``, ``services``), then by distribution."""
    found: dict[str, dict[str, list[str]]] = json.loads(files("omni_core").joinpath("advice.json").read_text("utf-8"))
    return found


def comes_with(kind: str, *names: str, records: Iterable[PluginRecord] = ()) -> str:
    """Return what the missing comes with: ``X: pip install X``, or a plugin of ``records`` and why it is not loaded; empty: unknown."""
    known = [distribution for distribution, provided in advice()[kind].items() if {*names} & {*provided}]
    for record in records:
        if record.distribution in known and record.status is not PluginStatus.LOADED:
            return f"plugin {record.title}, which is {record.status.value}: {record.reason}"
    return ", or ".join(f"{each}: pip install {each}" for each in known)


def distribution_for(architectures: Iterable[str]) -> str | None:
    """Return the known distribution that runs checkpoints of one of these architectures, or ``None``.

    A config that names none has sections instead, which count as such.
    """
    wanted = set(architectures)
    return next((name for name, runs in advice()["architectures"].items() if wanted & set(runs)), None)
