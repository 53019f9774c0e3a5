"""Puts the outcomes of keys together into one deploy file, and writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import StringIO
from typing import Any

from attrs import evolve
from ruamel.yaml import YAML

from omni_cli.deploy.source import LayeredSource
from omni_cli.importing.document import Leaf
from omni_cli.importing.report import Entry, Outcome, Path, Report, refuse, shown
from omni_core.api import ConfigError, PluginRegistry

_ORDER = ("pipeline", "model_path", "options", "defaults", "limits", "stages", "relays", "platforms")


def settle(pairs: Iterable[tuple[Leaf, Outcome]]) -> list[Entry]:
    """Return an entry for each key; one that would write another value to a path than a key before it is refused."""
    entries: list[Entry] = []
    written: dict[Path, tuple[Any, Leaf]] = {}
    for leaf, outcome in pairs:
        for path, value in outcome.writes:
            before, first = written.setdefault(path, (value, leaf))
            if before != value:
                outcome = refuse(
                    f"sets {'.'.join(path)} to {shown(value)}, but {first.where} ({first.name}) to {shown(before)}"
                )
                break
        entries.append(Entry(leaf, outcome))
    return entries


def checked(entries: list[Entry], check: Callable[[Iterable[Entry]], dict[Path, str]]) -> list[Entry]:
    """Return the entries, with those refused whose path is in what ``check`` finds over all of them."""
    wrong = check(entries)
    found = []
    for entry in entries:
        reason = next((wrong[path] for path, _ in entry.outcome.writes if path in wrong), None)
        found.append(entry if reason is None else evolve(entry, outcome=refuse(reason)))
    return found


def document(entries: Iterable[Entry], stages: Iterable[str], **fields: Any) -> dict[str, Any]:
    """Return the deploy file that the entries write, with further fields of the file. ``stages``: in the pipeline's order."""
    result: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    for entry in entries:
        for path, value in entry.outcome.writes:
            inner = result
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = value
    order = [*stages]
    for part in (result, *result.get("platforms", {}).values()):
        if "stages" in part:
            part["stages"] = {name: part["stages"][name] for name in sorted(part["stages"], key=order.index)}
    return {name: result[name] for name in sorted(result, key=lambda name: (*_ORDER, name).index(name))}


def validate(report: Report, source: str, model: str | None, registry: PluginRegistry) -> None:
    """Resolve the deploy file as a command would, on each platform that it names.

    Raises:
        ConfigError: the values that were taken do not fit together; a line for each problem.
    """
    values = {name: value for name, value in report.output.items() if name not in ("pipeline", "model_path")}
    for platform in dict.fromkeys(("cuda", *values.get("platforms", {}))):
        try:
            LayeredSource(report.output["pipeline"], model, overlay=values, platform=platform).resolve(registry)
        except ConfigError as error:
            raise ConfigError(f"{source}: what it says does not fit together, on {platform}:\n{error}") from None


def text(report: Report, source: str) -> str:
    """Return the deploy file as YAML, with a comment for each note."""
    yaml, stream = YAML(typ="safe", pure=True), StringIO()
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = None, False  # type: ignore[assignment]
    yaml.width = 140
    yaml.dump(report.output, stream)
    lines = [f"# Converted from {_line(source)} by `omni import`."]
    noted = report.of("noted")
    if noted:
        lines.append("# Left out:")
    lines += [
        f"#   {_line(each.leaf.name)}: {_line(shown(each.leaf.value))}  ({_line(each.outcome.text)})" for each in noted
    ]
    return "\n".join(lines) + "\n" + stream.getvalue()


def _line(text: str) -> str:
    """Return a text without what would end a comment."""
    return "".join(each if each.isprintable() else "?" for each in text)
