"""The page that lists the models of transformers that run."""

from __future__ import annotations

from generator.text import page
from omni_transformers.architectures import made_from, table
from omni_transformers.commands import not_served, rows

_TEXT = (
    "What `omni models` prints. A version says that the architecture was compared with that release of transformers, on a tiny "
    "checkpoint with random weights: greedy ids are equal, waveforms within 1e-4. "
    "[Any model of transformers](../transformers.md) says how they are run."
)

_TITLES = {
    "speak": "Models that speak",
    "recognise": "Models that write recordings down",
    "words": "Models that write text",
}


def architectures_page() -> str:
    """The page with a table for each kind: the architectures that were compared, and the names of the others."""
    parts = []
    for kind, title in _TITLES.items():
        found = rows(kind)
        compared = [each for each in found if each["checked with"]]
        others = [
            f"`{each['architecture']}`" for each in found if not each["checked with"] and each["backend"] != "none"
        ]
        refused = [(each.name, not_served(each)) for each in table().values() if each.kind == kind and not_served(each)]
        columns = ["architecture", "takes", "backend", "streams", "checkpoint", "licence", "checked with"]
        lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        lines += [f"| {' | '.join(each[name] for name in columns)} |" for each in compared]
        parts.append(f"## {title}\n\n" + "\n".join(lines))
        if others:
            parts.append(f"Not compared ({len(others)}): {', '.join(others)}.")
        if refused:
            parts.append("Not served: " + "; ".join(f"`{name}`, {why}" for name, why in refused) + ".")
    return page([f"# Models of transformers {made_from()}", _TEXT, *parts])
