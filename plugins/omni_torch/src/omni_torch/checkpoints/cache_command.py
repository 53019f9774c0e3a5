"""``omni cache``: lists and removes what starts have kept: prepared weights, folders made from files. Imports no torch."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from omni_torch.checkpoints import weight_cache
from omni_torch.checkpoints.folders import origin_of
from omni_torch.placement.budgets import size


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def cache(context: click.Context, as_json: bool) -> None:
    """List the prepared weights that later starts map: joined, converted or quantised once per checkpoint and options. And the folders with
    the config and the tokenizer of checkpoints that are one file.

    Weights lie in omni/weights of XDG_CACHE_HOME, by default ~/.cache. OMNI_WEIGHTS_CACHE sets how much there may be, by default 20GiB;
    `off` keeps none. When others are written, those of checkpoints that have been gone for a day are removed, then those used longest ago.
    """
    if context.invoked_subcommand is not None:
        return
    found = weight_cache.entries()
    rows = [
        {"name": each.name, "bytes": each.nbytes, "used": each.used, **_described(each)}
        for each in found
    ]  # fmt: skip
    made: list[dict[str, Any]] = [
        {"name": each.name, "bytes": each.nbytes, "made": each.used, "file": str(origin_of(each.path))}
        for each in weight_cache.made()
    ]  # fmt: skip
    total = sum(each.nbytes for each in found)
    if as_json:
        click.echo(
            json.dumps(
                {"folder": str(weight_cache.folder()), "bound": weight_cache.bound(), "weights": rows, "made": made},
                indent=2,
            )
        )
        return
    for row in rows:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["used"]))
        options = ", ".join(f"{name} {value}" for name, value in row["options"].items())
        click.echo(
            f"{row['name']}  {size(row['bytes']):>9}  {used}  {row['network']} of {row['checkpoint']} ({options})"
        )
    for row in made:
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["made"]))
        click.echo(f"{row['name']}  {size(row['bytes']):>9}  {day}  made from {row['file']}")
    click.echo(f"{size(total)} of at most {size(weight_cache.bound())} in {weight_cache.folder()}", err=True)


@cache.command()
@click.argument("names", nargs=-1)
def clear(names: tuple[str, ...]) -> None:
    """Remove prepared weights and folders made from files: those whose names begin with one of NAMES, or all. Processes that have read
    them keep theirs.
    """
    count, nbytes = weight_cache.clear(names)
    click.echo(f"removed {count}, {size(nbytes)}")


def _described(entry: weight_cache.Entry) -> dict[str, Any]:
    """Return what a file says of its origin."""
    origin: dict[str, Any] = entry.origin()
    try:
        options = {name: value for name, value in json.loads(origin["options"]).items() if value != "None"}
    except (ValueError, KeyError, AttributeError):
        return {"network": "a damaged file", "checkpoint": "?", "options": {}}
    return origin | {"options": options}
