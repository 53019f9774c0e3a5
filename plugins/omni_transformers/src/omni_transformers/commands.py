"""``omni models``: the architectures of transformers that run here, and the check of a checkpoint."""

from __future__ import annotations

import json

import click

from omni_transformers.architectures import KINDS, REFUSED, Architecture, made_from, table
from omni_transformers.checked import checked
from omni_transformers.licences import KNOWN
from omni_transformers.speak.declaration import SPEAKERS

_COLUMNS = ("architecture", "does", "takes", "endpoint", "backend", "streams", "checkpoint", "licence", "checked with")


def not_served(architecture: Architecture) -> str | None:
    """Return why an architecture has no pipeline; ``None``: it has one."""
    if architecture.kind == "speak" and architecture.name not in SPEAKERS:
        return "its speech is not served by this plugin"
    return REFUSED.get(architecture.name)


def rows(kind: str | None = None) -> list[dict[str, str]]:
    """Return what ``omni models`` prints, a mapping of columns for each architecture; those that were checked come first."""
    found = [_row(each) for each in table().values() if kind in (None, each.kind)]
    return sorted(found, key=lambda row: (not row["checked with"], list[str](KINDS).index(row["does"])))


def _row(architecture: Architecture) -> dict[str, str]:
    check = checked().get(architecture.name, {})
    checkpoint, licence = KNOWN.get(architecture.name, ("", ""))
    return dict(
        zip(
            _COLUMNS,
            (
                architecture.name,
                architecture.kind,
                ", ".join(architecture.inputs),
                KINDS[architecture.kind],
                "none" if not_served(architecture) else check.get("backend", ""),
                check.get("streams", ""),
                checkpoint,
                licence,
                check.get("transformers", ""),
            ),
            strict=True,
        )
    )


@click.group(invoke_without_command=True)
@click.option("--kind", type=click.Choice([*KINDS]), help="Those that do this only.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON list.")
@click.pass_context
def models(context: click.Context, kind: str | None, as_json: bool) -> None:
    """List the architectures of transformers that omni-transformers runs.

    Those with a version were checked with it: on tiny checkpoints their ids, or their sound, equal those of transformers.
    """
    if context.invoked_subcommand is not None:
        return
    found = rows(kind)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    shown = [_COLUMNS, *(tuple(each.values()) for each in found)]
    widths = [max(len(line[column]) for line in shown) for column in range(len(_COLUMNS))]
    for line in shown:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    click.echo(f"{len(found)} architectures of transformers {made_from()}", err=True)


@models.command()
@click.argument("model")
@click.option("--dtype", default="float32", help="Of the weights; by default float32.")
def check(model: str, dtype: str) -> None:
    """Load MODEL, a folder or a hub id, and compare one request with transformers' own generate()."""
    from omni_transformers.checking import report

    lines, is_equal = report(model, dtype)
    for line in lines:
        click.echo(line)
    if not is_equal:
        raise SystemExit(1)
