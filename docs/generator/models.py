"""The page that says what pipelines take, and the list of decision records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generator.text import page
from omni_core.plugins import load_plugins


def requests_page(pipelines: list[str]) -> str:
    """The page with a section for each pipeline."""
    components = {each.name: each for each, _ in load_plugins().components("omni_pipelines")}
    parts = [f"## {name}\n\n" + "\n\n".join(request_parts(components[name])) for name in pipelines]
    text = (
        "What a request to a pipeline may have, and the options with which the pipeline is opened. "
        "`omni pipelines NAME` prints the same of any installed pipeline."
    )
    return page(["# Requests and options of pipelines", text, *parts])


def request_parts(component: Any) -> Iterator[str]:
    """Describe what a pipeline takes, from the interface that its component declares."""
    interface = component.interface
    inputs, outputs = " and ".join(interface.inputs), " and ".join(interface.outputs)
    rate = f" Speech has {interface.sample_rate:,} samples a second." if interface.sample_rate else ""
    yield f"In: {inputs}. Out: {outputs}.{rate}"
    for group in interface.groups:
        where = f'`params["{group.name}"]`'
        if group is interface.plain_group:
            where += ", or directly in `params`"
        yield f"**{group.help[0].upper()}{group.help[1:]}**: {where}."
        yield parameter_table(group.parameters)
    if interface.params:
        yield "**Other parameters**: directly in `params`."
        yield parameter_table(interface.params)
    if interface.metadata:
        yield "**Metadata**: `metadata`."
        yield parameter_table(interface.metadata)
    if interface.voices or interface.voices_from:
        yield f"**Voices**: {', '.join(interface.voices) or interface.voices_from}."
    if interface.limits:
        yield "**Limits**: a request beyond one of these is refused."
        rows = [f"| `{name}` | {value:,.15g} |" for name, value in interface.limits.items()]
        yield "\n".join(["| limit | default |", "|---|---|", *rows])
    yield "**Options** of the pipeline: `--option NAME=VALUE`, or `options=` in Python."
    yield "\n".join(
        ["| option | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in component.options.items())]
    )


def parameter_table(parameters: list[Any]) -> str:
    rows = ["| name | value | default | |", "|---|---|---|---|"]
    for each in parameters:
        names = ", ".join(f"`{name}`" for name in each.names)
        preset = "" if each.default is None else f"`{each.default}`"
        rows.append(f"| {names} | {each.expected} | {preset} | {each.help} |")
    return "\n".join(rows)


def decisions_page(folder: Path) -> str:
    rows = []
    for path in sorted(folder.glob("0*.md")):
        number, _, title = path.read_text().partition("\n")[0].removeprefix("# ").partition(": ")
        rows.append(f"| {number} | [{title[0].upper()}{title[1:]}](decisions/{path.name}) |")
    text = "Each record says what was decided, in which situation, what else was considered, and what follows from it."
    return page(["# Decision records", text, "\n".join(["| | decision |", "|---|---|", *rows])])
