"""``omni plan --optimize``: the placements of a pipeline that meet objectives at the lowest cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from attrs import asdict, evolve

from omni_cli.deploy.options import source_of
from omni_core.api import ConfigError
from omni_core.runtime_api import with_source
from omni_planner.asking import about, estimated, mix_of, rate_of, with_estimate
from omni_planner.deploy import deploy_text
from omni_planner.figures import Objectives
from omni_planner.fleet import FleetPlan, plan_fleet
from omni_planner.load import Load
from omni_planner.search import Search
from omni_planner.trials import Trial, Trials, gpus_text


@click.command("optimize")
@with_source
@with_estimate
@click.option(
    "--slo",
    required=True,
    metavar="NAME=SECONDS,...",
    help="What 95 of 100 requests must keep: ttft (first text), ttfa (first sound), gap (seconds without sound while it plays), done.",
)
@click.option("--rate", metavar="N/s", help="Requests a second, at random.")
@click.option("--concurrency", type=click.IntRange(1), help="Requests at once.")
@click.option(
    "--conversations", type=click.IntRange(1), help="Conversations at once: a request, its sound, a pause, the next."
)
@click.option("--pause", type=click.FloatRange(0), default=6.0, show_default=True, help="Of a conversation, seconds.")
@click.option(
    "--spare", type=click.IntRange(0), default=1, show_default=True, help="With several hosts: those that may be lost."
)
@click.option(
    "--requests", "total", type=click.IntRange(20), default=150, show_default=True,
    help="Of each simulation, those that count.",
)  # fmt: skip
@click.option(
    "--trials", type=click.IntRange(1), default=60, show_default=True, help="Placements at most, on one host."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the deploy file of the best."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def optimize_command(
    devices: str, mix: tuple[str, ...], asks: tuple[str, ...], assume: tuple[str, ...], slo: str, rate: str | None,
    concurrency: int | None, conversations: int | None, pause: float, spare: int, total: int, trials: int, seed: int, out: Path | None,
    as_json: bool, **source: Any,
) -> None:  # fmt: skip
    """Search where the stages of PIPELINE should run so that objectives are met at the lowest cost; starts nothing."""
    objectives = Objectives.parse(slo)
    if sum(each is not None for each in (rate, concurrency, conversations)) != 1:
        raise click.UsageError("give one of --rate, --concurrency and --conversations")
    if out is not None and not out.absolute().parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.parent}")
    per_second = rate_of(rate)
    asked = source_of(source, "cuda")
    config = asked.resolve().config
    for notice in asked.notices:
        click.echo(notice, err=True)
    fleet, estimate = estimated(config, devices, asks, assume)
    in_flight = concurrency or conversations
    weights = mix_of(mix, estimate.kinds, config)
    load = Load(weights, total, per_second, in_flight, pause if conversations else None, seed)
    if in_flight:
        config = evolve(config, max_in_flight=max(config.max_in_flight, in_flight))
    made = Trials(config, estimate, objectives, fleet.accelerator.memory)

    def progress(text: str) -> None:
        click.echo(text, err=True)

    limits = ", ".join(f"{name} <= {limit:g} s" for name, limit in objectives.limits.items())
    lines = [f"plan of {config.resolved_name}: {load}; {limits} in 95 of 100", about(fleet, estimate.device.rates)]
    document: dict[str, Any]
    if fleet.hosts > 1:
        whole = plan_fleet(made, load, fleet, spare, progress)
        lines += _fleet_lines(whole, objectives)
        document = {"hosts": whole.hosts, "cells": whole.cells, "gpus_of_a_cell": whole.cell.gpus, "spare": whole.spare,
            "cell": _plain(whole.usual), "degraded": _plain(whole.degraded),
            "bears": {gpus: each.bears for gpus, each in whole.tried.items()}}  # fmt: skip
        chosen = whole.usual
    else:
        search = Search(made, load, trials, progress)
        front = search.run(fleet.gpus)
        if not front:
            raise ConfigError("\n".join(["no placement can be simulated:", *dict.fromkeys(search.refusals.values())]))
        chosen = next((each for each in front if not each.excess), front[-1])
        lines += _front_lines(front, chosen, objectives)
        lines += [f"{key}: {why}" for key, why in search.refusals.items() if "GPU" in key]
        document = {"front": [_plain(each) for each in front], "chosen": front.index(chosen), "met": not chosen.excess,
            "trials": len(search.made), "refusals": search.refusals}  # fmt: skip
    unknown = [name for name in objectives.limits if name not in chosen.figures]
    if unknown:
        raise ConfigError(
            f"--slo {slo}: the simulated requests have no {' and '.join(unknown)}: --mix has no such output"
        )
    if out is not None:
        out.write_text(deploy_text(asked, chosen.config, lines), encoding="utf-8")
        lines.append(f"{out}: check it with `omni config validate {out}`")
    if as_json:
        rates = asdict(estimate.device.rates)
        click.echo(json.dumps({"estimate": True, "rates": rates, **document}, indent=2))
    else:
        click.echo("\n".join(lines))


def _front_lines(front: list[Trial], chosen: Trial, objectives: Objectives) -> Iterator[str]:
    yield ""
    for trial in front:
        mark = "->" if trial is chosen else "  "
        yield f"{mark} {gpus_text(trial.cost)}: {_figures(trial)}; {trial.per_second:.2f} a second; {trial.reason}"
    yield ""
    if chosen.excess:
        why = "requests are refused" if chosen.refused else "more requests come than end"
        yield f"NOT MET: {', '.join(objectives.missed(chosen.figures)) or why}; the nearest is marked"
    for stage in chosen.config.stages:
        where = f"gpu {stage.gpu}" if stage.gpu is not None else "cpu"
        ranks = f", tp_size {stage.tp_size}" if stage.tp_size > 1 else ""
        copies = f", {stage.replicas} replicas" if stage.replicas > 1 else ""
        note = f" ({chosen.notes[stage.name]})" if stage.name in chosen.notes else ""
        yield f"   {stage.name}: process {stage.process or stage.name}, {where}{ranks}{copies}{note}"
    changed = {path: value for path, value in chosen.settings.items() if "factory_args" in path}
    if changed:
        yield "   " + ", ".join(f"{path}={value}" for path, value in changed.items())


def _fleet_lines(whole: FleetPlan, objectives: Objectives) -> Iterator[str]:
    yield ""
    for gpus, cell in whole.tried.items():
        about = "" if gpus == whole.cell.gpus else "about "
        yield f"cells of {gpus_text(gpus)} ({cell.shape.text}): {about}{cell.needed} would do; {cell.trial.reason}"
    yield ""
    yield (
        f"-> {whole.hosts} hosts, {whole.cells} cells of {gpus_text(whole.cell.gpus)}, each with the deploy file and a coordinator of its "
        "own, behind a balancer of requests"
    )
    yield f"   usual: {_figures(whole.usual)}; {whole.usual.reason}"
    yield f"   {whole.spare} host{'s' * (whole.spare != 1)} lost: {_figures(whole.degraded)}; {whole.degraded.reason}"


def _figures(trial: Trial) -> str:
    return ", ".join(f"{name} p50 {each.p50:.3f} p95 {each.p95:.3f} s" for name, each in trial.figures.items())


def _plain(trial: Trial) -> dict[str, Any]:
    figures = {name: asdict(each) for name, each in trial.figures.items()}
    return {"cost": trial.cost, "met": not trial.excess, "figures": figures, "per_second": trial.per_second, "refused": trial.refused,
        "busy": dict(trial.shares), "reason": trial.reason, "settings": dict(trial.settings)}  # fmt: skip
