"""Builds the command ``tiny-checkpoint`` of model distributions, which writes a checkpoint with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from omni_core.references import load


def tiny_checkpoint(write: str, shapes: Sequence[str], shapes_help: str) -> click.Command:
    """Return the command for one model.

    Args:
        write: reference to ``(directory, *, seed, shape, dtype) -> folder``, which raises FileExistsError if the folder holds a
            checkpoint already. It is loaded when the command runs.
        shapes: names of the dimensions to choose from, the default first.
        shapes_help: the help text of ``--shape``.
    """

    @click.command("tiny-checkpoint")
    @click.argument("directory", type=click.Path(path_type=Path))
    @click.option("--seed", default=0, show_default=True, help="Seed of the random weights.")
    @click.option("--shape", type=click.Choice(shapes), default=shapes[0], show_default=True, help=shapes_help)
    @click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
    def command(directory: Path, seed: int, shape: str, dtype: str) -> None:
        """Write a complete tiny checkpoint with RANDOM weights to DIRECTORY, in the released on-disk layout."""
        try:
            folder = load(write)(directory, seed=seed, shape=shape, dtype=dtype)
        except FileExistsError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            raise click.ClickException(f"{directory} cannot be written: {error.strerror or error}") from error
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
        click.echo(f"{folder}: {size:.1f} MiB, shape {shape}, random weights (seed {seed})")

    return command
