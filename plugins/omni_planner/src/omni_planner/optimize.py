"""``omni plan --optimize``: the placements of a pipeline that meet objectives at the lowest cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from attrs import asdict, evolve, fields

from omni_cli.deploy.options import source_of
from omni_core.cli.source import with_source
from omni_core.config.completion import completed
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_planner.commands import mix_of
from omni_planner.deploy import deploy_text
from omni_planner.devices import Fleet, Rates, assumed
from omni_planner.estimate import KINDS, Device, EstimatedProfile, ask_of, estimate
from omni_planner.fleet import FleetPlan, plan_fleet
from omni_planner.objectives import Objectives
from omni_planner.profile import PipelineProfile
from omni_planner.search import Search, reason
from omni_planner.trials import Load, Trial


@click.command("optimize")
@with_source
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
    "--devices", metavar="[HOSTSx]GPUSxSIZE", help="GPUs that may be used, estimated: 2x80GiB, 2xh100, 300x8xh100."
)
@click.option(
    "--profile",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What `omni calibrate` wrote: plan for processors, from measured costs.",
)
@click.option(
    "--cores", type=click.IntRange(1), help="With --profile: the most processors; by default those of the profile."
)
@click.option(
    "--mix",
    multiple=True,
    metavar="KIND=WEIGHT",
    help="Kinds of request; by default all of a profile, or speech (of images drawing).",
)
@click.option(
    "--request",
    "asks",
    multiple=True,
    metavar="KIND:text=N,...",
    help="Of an estimate, a kind of request: text (tokens), pixels, audio (seconds), reply (tokens), speech (seconds), drawn "
    "(pixels of an image to make), steps (of its denoising).",
)
@click.option(
    "--assume", multiple=True, metavar="RATE=VALUE", help="Of an estimate, replace one of the rates that it prints."
)
@click.option(
    "--spare", type=click.IntRange(0), default=1, show_default=True, help="With several hosts: those that may be lost."
)
@click.option(
    "--requests", "total", type=click.IntRange(20), default=150, show_default=True,
    help="Of each simulation, those that count.",
)  # fmt: skip
@click.option(
    "--trials", type=click.IntRange(1), default=60, show_default=True,
    help="Simulations at most; as they have others around those that count, as many as have the same number of requests.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the deploy file of the best."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def optimize_command(
    slo: str, rate: str | None, concurrency: int | None, conversations: int | None, pause: float, devices: str | None,
    path: Path | None, cores: int | None, mix: tuple[str, ...], asks: tuple[str, ...], assume: tuple[str, ...], spare: int, total: int,
    trials: int, seed: int, out: Path | None, as_json: bool, **source: Any,
) -> None:  # fmt: skip
    """Search where the stages of PIPELINE should run so that objectives are met at the lowest cost; starts nothing."""
    objectives = Objectives.parse(slo)
    if (devices is None) == (path is None):
        raise click.UsageError("give either --devices (GPUs, estimated) or --profile (processors, measured)")
    if sum(each is not None for each in (rate, concurrency, conversations)) != 1:
        raise click.UsageError("give one of --rate, --concurrency and --conversations")
    if out is not None and not out.absolute().parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.parent}")
    fleet = Fleet.parse(devices) if devices is not None else None
    asked = source_of(source, "cuda" if fleet is not None else None)
    config = asked.resolve().config
    for notice in asked.notices:
        click.echo(notice, err=True)
    rates = Rates()
    profile: PipelineProfile
    if fleet is not None:
        for each in assume:
            rates = assumed(each, rates)
        kinds = {**KINDS, **dict(map(ask_of, asks))}
        profile = estimate(config, Device(fleet.accelerator, rates), kinds)
        draws = config.interface is not None and list(config.interface.outputs) == ["image"]
        weights = mix_of(mix or ("drawing=1" if draws else "speech=1",), profile)
    else:
        assert path is not None
        config, profile = completed(config), PipelineProfile.load(path)
        weights = mix_of(mix, profile)
    in_flight = concurrency or conversations
    load = Load(weights, total, _rate(rate), in_flight, pause if conversations else None, seed)
    if in_flight:
        config = evolve(config, max_in_flight=max(config.max_in_flight, in_flight))

    def progress(text: str) -> None:
        click.echo(text, err=True)

    if fleet is not None and fleet.hosts > 1:
        assert isinstance(profile, EstimatedProfile)
        whole = plan_fleet(config, profile, load, objectives, fleet, spare, progress)
        lines = [*_about(config, load, objectives, fleet, rates), *_fleet_lines(whole, objectives)]
        bears = {gpus: cell.bears for gpus, cell in whole.cells_tried.items()}
        document: dict[str, Any] = {"hosts": whole.hosts, "cells": whole.cells, "gpus_of_a_cell": whole.cell.gpus, "spare": whole.spare,
            "cell": _plain(whole.usual), "degraded": _plain(whole.degraded), "bears": bears}  # fmt: skip
        chosen = whole.usual
    else:
        search = Search(config, profile, load, objectives, trials, progress)
        front = search.on_gpus(fleet) if fleet is not None else search.on_cores(cores or profile.hardware.cores)
        unit = "core" if fleet is None else "GPU"
        lines = _about(config, load, objectives, fleet, rates)
        if not front:
            raise ConfigError("\n".join(["no placement can be simulated:", *dict.fromkeys(search.refusals.values())]))
        chosen = next((each for each in front if not each.excess), front[-1])
        lines += [
            *_front_lines(front, chosen, objectives, unit),
            *(f"{key}: {why}" for key, why in search.refusals.items() if "GPU" in key),
        ]
        document = {"front": [_plain(each) for each in front], "chosen": front.index(chosen), "met": not chosen.excess,
            "trials": len(search.trials), "refusals": search.refusals}  # fmt: skip
    unknown = [name for name in objectives.limits if name not in chosen.figures]
    if unknown:
        raise ConfigError(
            f"--slo {slo}: the simulated requests have no {' and '.join(unknown)}: --mix has no such output, or the profile is of an "
            "older version (omni calibrate)"
        )
    if out is not None:
        out.write_text(deploy_text(asked, chosen.config, lines), encoding="utf-8")
        lines.append(f"{out}: check it with `omni config validate {out}`")
    if as_json:
        click.echo(
            json.dumps({"estimate": fleet is not None, "rates": asdict(rates) if fleet else None, **document}, indent=2)
        )
    else:
        click.echo("\n".join(lines))


def _rate(text: str | None) -> float | None:
    """Parse ``20/s``, ``20`` or ``600/min``."""
    if text is None:
        return None
    number, _, unit = text.partition("/")
    try:
        rate = float(number) / {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}[unit.strip()]
    except (ValueError, KeyError):
        rate = -1.0
    if not 0 < rate < float("inf"):
        raise ConfigError(f"--rate {text}: must be a number above 0, such as 20/s or 600/min")
    return rate


def _about(config: PipelineConfig, load: Load, objectives: Objectives, fleet: Fleet | None, rates: Rates) -> list[str]:
    limits = ", ".join(f"{name} <= {limit:g} s" for name, limit in objectives.limits.items())
    lines = [f"plan of {config.resolved_name}: {load}; {limits} in 95 of 100"]
    if fleet is not None:
        sheet = fleet.accelerator
        lines.append(
            f"ESTIMATE, nothing was measured: {fleet}, {sheet.flops / 1e12:g} TFLOP/s ({sheet.float32_flops / 1e12:g} in float32), "
            f"{sheet.bandwidth / 1e12:g} TB/s, "
            f"links {sheet.link / 1e9:g} GB/s; "
            + ", ".join(f"{each.name} {getattr(rates, each.name):g}" for each in fields(Rates))
        )
    return lines


def _front_lines(front: list[Trial], chosen: Trial, objectives: Objectives, unit: str) -> Iterator[str]:
    yield ""
    for trial in front:
        mark = "->" if trial is chosen else "  "
        yield f"{mark} {trial.cost} {unit}{'s' * (trial.cost > 1)}: {_figures(trial)}; {trial.per_second:.2f} a second; {reason(trial)}"
    yield ""
    missed = objectives.missed(chosen.figures)
    if missed or chosen.refused:
        yield f"NOT MET: {', '.join(missed) or 'requests are refused'}; the nearest is marked"
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
    for gpus, cell in whole.cells_tried.items():
        about = "" if cell.is_settled else "about "
        yield f"cells of {gpus} GPU{'s' * (gpus > 1)} ({cell.shape.text}): {about}{cell.needed()} would do; {reason(cell.trial)}"
    for gpus, other in whole.worse.items():
        yield f"cells of {gpus} GPUs ({other.shape}): {other.text}"
    yield ""
    yield (
        f"-> {whole.hosts} hosts, {whole.cells} cells of {whole.cell.gpus} GPUs, each with the deploy file and a coordinator of its own, "
        "behind a balancer of requests"
    )
    yield f"   usual: {_figures(whole.usual)}; {reason(whole.usual)}"
    yield f"   {whole.spare} host{'s' * (whole.spare != 1)} lost: {_figures(whole.degraded)}; {reason(whole.degraded)}"
    missed = objectives.missed(whole.degraded.figures)
    if missed:
        yield f"NOT MET after the loss: {', '.join(missed)}; give a larger --spare"


def _figures(trial: Trial) -> str:
    return ", ".join(f"{name} p50 {each.p50:.3f} p95 {each.p95:.3f} s" for name, each in trial.figures.items())


def _plain(trial: Trial) -> dict[str, Any]:
    figures: Mapping[str, Any] = {name: asdict(each) for name, each in trial.figures.items()}
    return {"cost": trial.cost, "met": not trial.excess, "figures": figures, "per_second": trial.per_second, "refused": trial.refused,
        "busy": dict(trial.shares), "reason": reason(trial), "settings": dict(trial.settings)}  # fmt: skip
