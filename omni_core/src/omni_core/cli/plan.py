"""``omni plan PIPELINE``: the process and the device of each stage, and the fit of their budgets, before anything starts."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from omni_core.cli.config import resolve_config, with_source
from omni_core.config.completion import DoesNotFitError, Machine, placed
from omni_core.config.devices import detect
from omni_core.config.placement import PlannedProcess, gib, parse_bytes, problems
from omni_core.config.placement import plan as planned_processes
from omni_core.errors import ConfigError


@click.command()
@with_source
@click.option("--gpus", type=click.IntRange(0), help="Plan for so many GPUs; by default for those of this machine.")
@click.option("--gpu-memory", metavar="SIZE", help="What each of them has, for example 80GiB. Needs --gpus.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(gpus: int | None, gpu_memory: str | None, as_json: bool, **source: Any) -> None:
    """Show where every stage of PIPELINE runs. Fails, and says which setting to turn, if it does not fit."""
    if gpu_memory is not None and gpus is None:
        raise click.UsageError("--gpu-memory needs --gpus")
    config = resolve_config(**source).config
    found, notes, devices = [], {}, _devices(gpus, gpu_memory)
    try:
        placement = placed(config, Machine(devices, here=gpus is None))
        config, notes = placement.config, placement.notes
        if gpus is None:
            devices = devices or None  # a laptop is no reason to refuse the plan of a server
        processes = planned_processes(config)
        here = [process for process in processes if process.host is None]
        found = problems(here, devices)  # another host says at the start what it has
    except DoesNotFitError as error:
        processes, found = [], [str(error)]
    if as_json:
        document = {"processes": [_plain(each) for each in processes], "notes": notes, "problems": found}
        click.echo(json.dumps(document, indent=2))
    elif processes:
        _show(processes, notes, devices)
    if found:
        raise ConfigError("it does not fit:\n" + "\n".join(found))


def _devices(gpus: int | None, gpu_memory: str | None) -> list[int] | None:
    if gpus is None:
        return detect()
    return [parse_bytes(gpu_memory) if gpu_memory is not None else 2**63] * gpus


def _show(processes: list[PlannedProcess], notes: dict[str, str], devices: list[int] | None) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("stage", "process", "device", "memory"):
        table.add_column(column, no_wrap=True)
    for process in processes:
        for stage in process.stages:
            gpu, budget = process.gpus.get(stage.name), process.budgets().get(stage.name)
            device = "cpu" if gpu is None else f"gpu {gpu}"
            device += "" if process.host is None else f" on {process.host}"
            table.add_row(stage.name, process.name, device, "" if budget is None else str(budget))
    Console(soft_wrap=True).print(table)
    for name, note in notes.items():
        click.echo(f"{name}: {note}")
    for gpu, size in enumerate(devices or []):
        there = [process for process in processes if process.host is None and process.gpu == gpu]
        budgets = [each for process in there for each in process.budgets().values()]
        taken = sum(each.of(size) or 0 for each in budgets if each is not None)
        if budgets and size < 2**63:
            click.echo(f"gpu {gpu}: {gib(taken)} of {gib(size)} given to {len(budgets)} stages")


def _plain(process: PlannedProcess) -> dict[str, Any]:
    budgets = process.budgets()
    return {
        "process": process.name,
        "unit": process.unit,
        "replica": process.replica,
        "rank": process.rank,
        "host": process.host,
        "gpu": process.gpu,
        "stages": [
            {"name": stage.name, "gpu": process.gpus.get(stage.name), "gpu_memory": _text(budgets.get(stage.name))}
            for stage in process.stages
        ],
    }


def _text(budget: Any) -> str | None:
    return None if budget is None else str(budget)
