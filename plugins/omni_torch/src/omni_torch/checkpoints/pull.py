"""``omni pull MODEL``: downloads a checkpoint, so that a later run starts at once."""

from __future__ import annotations

from pathlib import Path

import click

from omni_core.api import ConfigError, expanded
from omni_torch.checkpoints.hub import download, split_hub_id
from omni_torch.placement.budgets import size


@click.command()
@click.argument("model")
@click.option("--revision", help="A branch, a tag or a commit; by default main.")
def pull(model: str, revision: str | None) -> None:
    """Download MODEL, a hub id such as Qwen/Qwen3-Omni-30B-A3B-Instruct, into the hub's cache, and print its folder.

    Files that are complete are kept, so an interrupted download continues. The disk is checked before. HF_HOME sets the
    cache, HF_TOKEN the access, HF_ENDPOINT a mirror.
    """
    found = split_hub_id(model)
    if found is None or expanded(model).exists():
        raise click.UsageError(f"{model} is no hub id of the form owner/name")
    if revision is not None and found[1] is not None:
        raise ConfigError(f"--revision {revision}: {model} names a revision itself; give one of them")
    named = model if revision is None else f"{model}@{revision}"
    folder = download(named)
    nbytes = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    click.echo(f"{named}: {size(nbytes)}", err=True)
    click.echo(folder)
