"""``omni simulate``, which is ``omni plan --simulate`` too: what a pipeline does under a load, without starting it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from attrs import asdict

from omni_cli.deploy.fitting import placed
from omni_cli.deploy.options import resolve_config, source_of
from omni_core.cli.source import with_source
from omni_core.config.completion import Machine, completed
from omni_core.config.placement import plan
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_planner.arrivals import Pattern, open_loop, pattern_of
from omni_planner.commands import mix_of
from omni_planner.devices import Fleet, Rates, assumed
from omni_planner.estimate import KINDS, Device, ask_of, estimate
from omni_planner.failures import at_random, failure_of
from omni_planner.profile import PipelineProfile
from omni_planner.requests import Arrival, closed_loop, draw
from omni_planner.simulate import Outcome, simulate, summarise


@click.command("simulate")
@with_source
@click.option(
    "--profile",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What `omni calibrate` wrote.",
)
@click.option("--devices", metavar="GPUSxSIZE", help="Or GPUs, estimated: 2x80GiB, 2xh100; see `omni plan --optimize`.")
@click.option("--request", "asks", multiple=True, metavar="KIND:text=N,...", help="Of an estimate, a kind of request.")
@click.option("--assume", multiple=True, metavar="RATE=VALUE", help="Of an estimate, replace one of its rates.")
@click.option("--concurrency", type=click.IntRange(1), help="Requests under way at once.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Requests a second on average, instead.")
@click.option(
    "--arrivals", default="poisson", show_default=True, metavar="PATTERN",
    help="With --rate: poisson; gamma:VARIATION, by the coefficient of variation of the times between requests; or bursts:ON,OFF, mean "
    "seconds with requests and without.",
)  # fmt: skip
@click.option(
    "--requests",
    "total",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    help="How many come; with --rate, about.",
)
@click.option("--mix", multiple=True, metavar="KIND=WEIGHT", help="Of the kinds of request; by default all alike.")
@click.option(
    "--fail", "fails", multiple=True, metavar="UNIT@SECONDS",
    help="Let a process die then; host:NAME@SECONDS+AWAY: a host with all its processes, for so long. Repeatable.",
)  # fmt: skip
@click.option(
    "--mtbf",
    type=click.FloatRange(min=0, min_open=True),
    help="Let every process die at random, after so many seconds on average.",
)
@click.option("--cores", type=click.IntRange(1), help="Of each machine; by default as many as the profile's has.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def simulate_command(
    path: Path | None, devices: str | None, asks: tuple[str, ...], assume: tuple[str, ...], concurrency: int | None, rate: float | None,
    arrivals: str, total: int, mix: tuple[str, ...], fails: tuple[str, ...], mtbf: float | None, cores: int | None, seed: int,
    as_json: bool, **source: Any,
) -> None:  # fmt: skip
    """Predict what PIPELINE does under a load, as it is configured, from a profile of it; starts nothing."""
    if sum(each is not None for each in (concurrency, rate)) != 1:
        raise click.UsageError("give either --concurrency or --rate")
    if (path is None) == (devices is None):
        raise click.UsageError("give either --profile (measured) or --devices (GPUs, estimated)")
    pattern = pattern_of(arrivals)
    if rate is None and arrivals != "poisson":
        raise click.UsageError("--arrivals is for --rate")
    failures = [failure_of(each) for each in fails]
    config, profile = _measured(path, source) if path is not None else _estimated(devices or "", asks, assume, source)
    load = _load(profile, mix, concurrency, rate, pattern, total, seed)
    if mtbf is not None:
        units = [each.name for each in plan(config) if not each.rank]
        lasts = max((each.seconds or 0.0 for each in load), default=0.0)
        if not lasts:
            raise click.UsageError("--mtbf needs a load with a duration: --rate")
        failures += at_random(units, mtbf, lasts, seed)
    outcome = simulate(config, profile, load, in_flight=concurrency, cores=cores, failures=failures)
    _show(outcome, profile, as_json)


def _measured(path: Path, source: dict[str, Any]) -> tuple[PipelineConfig, PipelineProfile]:
    return completed(resolve_config(**source).config), PipelineProfile.load(path)


def _estimated(
    devices: str, asks: tuple[str, ...], assume: tuple[str, ...], source: dict[str, Any]
) -> tuple[PipelineConfig, PipelineProfile]:
    fleet, rates = Fleet.parse(devices), Rates()
    if fleet.hosts > 1:
        raise ConfigError(f"--devices {devices}: one host is simulated; `omni plan --optimize` plans for several")
    for each in assume:
        rates = assumed(each, rates)
    config = source_of(source, "cuda").resolve().config
    profile = estimate(config, Device(fleet.accelerator, rates), {**KINDS, **dict(map(ask_of, asks))})
    return placed(config, Machine([fleet.accelerator.memory] * fleet.gpus, here=False)).config, profile


def _load(
    profile: PipelineProfile,
    mix: tuple[str, ...],
    concurrency: int | None,
    rate: float | None,
    pattern: Pattern,
    total: int,
    seed: int,
) -> list[Arrival]:
    requests = draw(profile.kinds, mix_of(mix, profile), seed)
    if concurrency is not None:
        return closed_loop(requests, total)
    assert rate is not None
    return open_loop(requests, rate, total / rate, seed, pattern)


def _show(outcome: Outcome, profile: PipelineProfile, as_json: bool) -> None:
    summary = summarise(outcome)
    if as_json:
        shares = {"processors": outcome.busy, "stages": outcome.stages, "devices": outcome.devices}
        document = {**asdict(summary), "deaths": outcome.deaths, "busy": shares, "estimate": profile.is_estimate}
        click.echo(json.dumps(document, indent=2))
        return
    if profile.is_estimate:
        click.echo(f"ESTIMATE, nothing was measured: {profile.hardware.processor}")
    text = f"{summary.requests} requests, {summary.per_second:.2f} a second, {summary.refused} refused"
    if outcome.deaths:
        text += (
            f"; {outcome.deaths} processes died, {summary.failed} requests failed by it, {summary.retried} ran again"
        )
    click.echo(text)
    for name, seconds in [*((f"first {stage}", each) for stage, each in summary.first.items()), ("done", summary.done)]:
        if seconds is not None:
            click.echo(f"{name:16} p50 {seconds.p50:8.3f} s   p95 {seconds.p95:8.3f} s")
    if summary.late is not None:
        click.echo(f"{'late sound':16} p50 {summary.late.p50:8.3f} s   p95 {summary.late.p95:8.3f} s")
    busy = ", ".join(f"{cores:.2f}" for cores in outcome.busy)
    computing = {**outcome.stages, **{f"gpu {name}": share for name, share in outcome.devices.items()}}
    listed = ", ".join(f"{name} {share:.0%}" for name, share in sorted(computing.items(), key=lambda each: -each[1]))
    click.echo(f"processors at work, by machine: {busy}; stages: {listed}")
