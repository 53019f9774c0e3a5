"""``omni qwen3 ...``: commands about Qwen3-Omni checkpoints."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def qwen3() -> None:
    """Qwen3-Omni checkpoints."""


@qwen3.command("tiny-checkpoint")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Seed of the random weights.")
@click.option(
    "--shape",
    type=click.Choice(["a", "b", "c", "mid", "large"]),
    default="a",
    show_default=True,
    help="Dimensions; mid is about 270 M, large 1.5 B.",
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
def tiny_checkpoint(directory: Path, seed: int, shape: str, dtype: str) -> None:
    """Write a complete tiny checkpoint with RANDOM weights to DIRECTORY, in the released on-disk layout."""
    from omni_qwen3.tiny_checkpoint import write_tiny_checkpoint

    try:
        folder = write_tiny_checkpoint(directory, seed=seed, shape=shape, dtype=dtype)
    except FileExistsError as error:
        raise click.ClickException(str(error)) from error
    size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
    click.echo(f"{folder}: {size:.1f} MiB, shape {shape}, random weights (seed {seed})")
