"""``omni config explain PIPELINE [PATH]``: what each layer says about a value, which one wins, and who reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
from attrs import asdict, evolve, frozen

from omni_cli.config.command import placed_here
from omni_cli.config.server import serve_command
from omni_cli.config.users import User, settable, user_of
from omni_cli.config.values import MISSING, at, by_path, is_within, plain, shown
from omni_cli.deploy.options import resolve_config
from omni_cli.deploy.override_layers import LayeredConfig
from omni_core.api import ConfigError, PipelineConfig, did_you_mean
from omni_core.runtime_api import unstructure, with_source

MACHINE = "this machine"
"""The layer of what the pipeline's ``placement_fn`` chooses."""


@frozen
class Row:
    """The word of a layer about a value; ``origin`` is where, ``said`` false where it says nothing."""

    layer: str
    origin: str
    value: Any
    said: bool = True


@frozen
class Explanation:
    """A value (:data:`MISSING`: none is left), what the layers say about it from low to high, and who reads it."""

    path: str
    value: Any
    rows: list[Row]
    user: User | None

    @property
    def winner(self) -> Row | None:
        return next((row for row in reversed(self.rows) if row.said), None)


@click.command()
@with_source
@click.argument("path", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def explain(context: click.Context, /, path: str | None, as_json: bool, **source: Any) -> None:
    """Show what each layer of PIPELINE's config says about PATH (such as decoder.gpu), which one wins, and who reads the value.

    Without PATH: every value that is not the pipeline's own. A file or preset may stand for PIPELINE.
    """
    resolved = resolve_config(**source)
    found = list(explanations(resolved, placed_here(resolved), path, serve_command(context)))
    if as_json:
        click.echo(json.dumps(plain([_document(each) for each in found]), indent=2, default=str))
        return
    if not found:
        click.echo("Every value is the pipeline's own.")
    for number, each in enumerate(found):
        click.echo(("\n" if number and path else "") + "\n".join(_lines(each, whole=path is not None)))


def explanations(
    resolved: LayeredConfig, placed: PipelineConfig, path: str | None, serve: click.Command | None = None
) -> Iterator[Explanation]:
    """Yield an explanation of each value at or below ``path``; without it, of each that a layer or the machine has set.

    Raises:
        ConfigError: there is nothing at ``path``; the message names the nearest path.
    """
    below, now = by_path(resolved.below), by_path(unstructure(resolved.config))
    there = by_path(unstructure(evolve(placed, placement_fn=resolved.config.placement_fn)))
    chosen = {name: value for name, value in there.items() if now.get(name, MISSING) != value}
    gone = {name: None for name in now if name not in there}
    overrides = [each for layer in resolved.layers for each in layer.overrides]
    outside = {
        each.path: each.value for each in overrides if each.parts[0] in ("pipeline", "model_path", "options", "relays")
    }
    values = {**below, **now, **outside, **chosen, **gone}
    if path is not None and path.partition(".")[0] == "interface":
        raise ConfigError(
            f"{path}: the interface is the pipeline's own, which no layer changes; see `omni pipelines NAME`"
        )
    if path is None:
        names = [*dict.fromkeys([*(each.path for each in overrides), *chosen, *gone])]
        paths = list(dict.fromkeys(leaf for each in names for leaf in (_below(each, values) or [each])))
    elif path == "stages":
        paths = [each for stage in resolved.config.stages for each in _below(stage.name, values)]
    else:
        path = path.removeprefix("stages.")
        paths = _below(path, values) or [path]
    for each in paths:
        user = user_of(each, resolved.config, serve)
        if each not in values and user is None:
            hint = did_you_mean(each, [*values, *settable(resolved.config)])
            hint = hint if hint.startswith("; did") else "; `omni config show` prints the whole of it"
            raise ConfigError(f"{path}: the config has no such path{hint}")
        rows = [Row("pipeline", resolved.origins.get(each, ""), below.get(each), each in below)]
        for layer in resolved.layers:
            given = [
                one
                for one in layer.overrides
                if is_within(each, one.path) and at(each, one.path, one.value) is not MISSING
            ]
            # A layer that sets the whole of a mapping takes away what was below it.
            given = given or [one for one in layer.overrides if is_within(each, one.path) and _has_said(rows)]
            rows += [Row(layer.name, one.origin, at(each, one.path, one.value)) for one in given]
            rows += [] if given else [Row(layer.name, "", None, False)]
        if each in chosen or each in gone:
            rows.append(Row(MACHINE, "", chosen.get(each)))
        said = [row.value for row in rows if row.said]
        known = next((found[each] for found in (chosen, gone, now) if each in found), said[-1] if said else MISSING)
        yield Explanation(each, known, rows, user)


def _has_said(rows: list[Row]) -> bool:
    return next((row.value is not MISSING for row in reversed(rows) if row.said), False)


def _below(path: str, values: dict[str, Any]) -> list[str]:
    return [name for name in values if is_within(name, path)]


def _lines(each: Explanation, *, whole: bool) -> Iterator[str]:
    yield (
        f"{each.path} = {shown(each.value)}"
        if each.value is not MISSING and (each.winner is not None or each.user is None)
        else f"{each.path} is not set"
    )
    rows = [row for row in each.rows if row.said or whole]
    if not rows or (not whole and not rows[0].said):
        rows = [row for row in rows if row.said]
    labels = [_label(row) for row in rows]
    width = max(map(len, labels), default=0)
    for row, label in zip(rows, labels, strict=True):
        value = shown(row.value) if row.said else "-"
        if not row.said and row.layer == "pipeline":
            value = (
                "(not set)"
                if each.user is None or each.user.default is None
                else f"(not set; the default is {each.user.default})"
            )
        mark = "   <- wins" if row is each.winner and (len(rows) > 1 or whole) else ""
        yield f"  {label:{width}}   {value}{mark}"
    if whole and each.user is not None:
        yield f"  read by {each.user.name}" + (f": {each.user.help}" if each.user.help else "")


def _label(row: Row) -> str:
    """Return the name of a layer with the line, or the flag or variable, that says the value."""
    line = row.origin.rpartition(":")[2]
    if line.isdigit() and row.layer != "pipeline":
        return f"{row.layer}:{line}"
    return row.origin or row.layer


def _document(each: Explanation) -> dict[str, Any]:
    winner = each.winner
    return {
        "path": each.path,
        "value": None if each.value is MISSING else each.value,
        "layers": [
            {"layer": row.layer, "origin": row.origin, "value": None if row.value is MISSING else row.value}
            for row in each.rows
            if row.said
        ],
        "winner": None if winner is None else winner.layer,
        "read_by": None if each.user is None else asdict(each.user),
    }
