"""``omni profile``: a recording of a running pipeline's events, for a trace viewer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from omni_cli.runs import chosen, run_argument
from omni_cli.status_client import StatusClient
from omni_core.runtime_api import ProfileDone


@click.command()
@run_argument
@click.option("--seconds", type=click.FloatRange(0.01), default=5.0, show_default=True, help="How long to record.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("trace.json"), show_default=True)
@click.option(
    "--torch",
    multiple=True,
    metavar="STAGE",
    help="Record this stage's torch operations too (about 50 MB a second); repeatable.",
)
def profile(run: str | None, seconds: float, out: Path, torch: tuple[str, ...]) -> None:
    """Record a running pipeline for a while.

    RUN is the pipeline's name, its process or its run folder (see `omni ps`); optional if only one pipeline is running.
    """
    done = asyncio.run(_record(chosen(run).folder, seconds, out.absolute(), torch))
    click.echo(f"{done.events} events in {out}; open it at https://ui.perfetto.dev")
    if done.dropped:
        click.echo(f"{done.dropped} events did not fit; record for a shorter time", err=True)
    for name in done.missing:
        click.echo(f"process {name} gave no events", err=True)


async def _record(folder: Path, seconds: float, out: Path, torch: tuple[str, ...]) -> ProfileDone:
    with StatusClient(folder) as client:
        return await client.profile(seconds, out, torch)
