"""``omni tiny-checkpoint``: writes a checkpoint of one of our models with random weights."""

from __future__ import annotations

from pathlib import Path

import click

from omni_testing.tiny import MODELS, writer


@click.command("tiny-checkpoint")
@click.argument("model", type=click.Choice(list(MODELS)))
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Seed of the random weights.")
@click.option(
    "--shape",
    default="a",
    show_default=True,
    help="Dimensions: a, b or c (qwen3-tts: also base-a, design-a, ...); mid (qwen3: 270 M, fish-s2: 90 M, qwen3-tts and "
    "qwen-image: 40 M), large (qwen3: 1.5 B, qwen3-tts: 0.8 B), edit (qwen-image).",
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
def tiny_checkpoint(model: str, directory: Path, seed: int, shape: str, dtype: str) -> None:
    """Write a complete tiny checkpoint of MODEL with RANDOM weights to DIRECTORY, in the released on-disk layout."""
    try:
        folder = writer(model)(directory, seed=seed, shape=shape, dtype=dtype)
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{model} needs {MODELS[model]}: pip install {MODELS[model]} ({error})") from error
    except (FileExistsError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{directory} cannot be written: {error.strerror or error}") from error
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    click.echo(f"{folder}: {size:.1f} MiB, shape {shape}, random weights (seed {seed})")
