"""``omni simulate``, which is ``omni plan --simulate`` too: what a pipeline does under a load, without starting it."""

from __future__ import annotations

import json
from typing import Any

import click
from attrs import asdict

from omni_cli.deploy.fitting import placed
from omni_cli.deploy.options import source_of
from omni_core.api import ConfigError, Machine
from omni_core.runtime_api import with_source
from omni_planner.asking import about, estimated, mix_of, rate_of, with_estimate
from omni_planner.estimate import Estimate
from omni_planner.figures import Quantiles, figures_of, first_outputs
from omni_planner.load import Load
from omni_planner.simulation import Outcome, simulate


@click.command("simulate")
@with_source
@with_estimate
@click.option("--concurrency", type=click.IntRange(1), help="Requests under way at once.")
@click.option("--rate", metavar="N/s", help="Or requests a second.")
@click.option(
    "--variation", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
    help="With --rate, of the times between requests the standard deviation over the mean: 1 is at random, 3 is bursty.",
)  # fmt: skip
@click.option("--requests", "total", type=click.IntRange(1), default=500, show_default=True, help="How many come.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def simulate_command(
    devices: str, mix: tuple[str, ...], asks: tuple[str, ...], assume: tuple[str, ...], concurrency: int | None, rate: str | None,
    variation: float, total: int, seed: int, as_json: bool, **source: Any,
) -> None:  # fmt: skip
    """Predict what PIPELINE does under a load, as it is configured, on GPUs that need not be here; starts nothing."""
    if (concurrency is None) == (rate is None):
        raise click.UsageError("give either --concurrency or --rate")
    config = source_of(source, "cuda").resolve().config
    fleet, estimate = estimated(config, devices, asks, assume)
    if fleet.hosts > 1:
        raise ConfigError(f"--devices {devices}: one host is simulated; `omni plan --optimize` plans for several")
    load = Load(mix_of(mix, estimate.kinds, config), total, rate_of(rate), concurrency, None, seed, variation)
    memory = [fleet.accelerator.memory] * fleet.gpus
    config = estimate.budgeted(placed(config, Machine(memory, here=False)).config, memory)
    outcome = simulate(config, estimate, load)
    if as_json:
        click.echo(json.dumps(_document(outcome, estimate), indent=2))
        return
    click.echo(about(fleet, estimate.device.rates))
    _show(outcome, estimate)


def _document(outcome: Outcome, estimate: Estimate) -> dict[str, Any]:
    ended = [each for each in outcome.flights if not each.refused]
    figures = figures_of(ended, estimate)
    return {
        "requests": len(ended),
        "refused": len(outcome.flights) - len(ended),
        "per_second": len(ended) / (outcome.seconds or 1.0),
        "first": {stage: asdict(each) for stage, each in first_outputs(ended).items()},
        "done": asdict(figures["done"]) if ended else None,
        "late": asdict(figures["gap"]) if "gap" in figures else None,
        "busy": {"stages": outcome.stages, "devices": outcome.gpus, "messages": outcome.messages},
        "estimate": True,
    }


def _show(outcome: Outcome, estimate: Estimate) -> None:
    found = _document(outcome, estimate)
    click.echo(f"{found['requests']} requests, {found['per_second']:.2f} a second, {found['refused']} refused")
    figures: dict[str, Quantiles] = {f"first {stage}": Quantiles(**each) for stage, each in found["first"].items()}
    for name, key in (("done", "done"), ("late sound", "late")):
        if found[key] is not None:
            figures[name] = Quantiles(**found[key])
    for name, seconds in figures.items():
        click.echo(f"{name:16} p50 {seconds.p50:8.3f} s   p95 {seconds.p95:8.3f} s")
    computing = {**outcome.stages, **{f"gpu {name}": share for name, share in outcome.gpus.items()}}
    listed = ", ".join(f"{name} {share:.0%}" for name, share in sorted(computing.items(), key=lambda each: -each[1]))
    click.echo(f"busy: {listed}")
