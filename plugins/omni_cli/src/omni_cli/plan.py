"""``omni plan PIPELINE``: the process and the device of each stage, and the fit of their budgets, before anything starts."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from omni_cli.deploy.budgets import problems
from omni_cli.deploy.fitting import check_placement, gpus_of, placed
from omni_cli.deploy.options import resolve_config
from omni_cli.deploy.platforms import platform
from omni_core.api import ConfigError, DoesNotFitError, Machine, gib, load, load_plugins, parse_bytes
from omni_core.runtime_api import PlannedProcess, with_source
from omni_core.runtime_api import plan as planned_processes


class _Plan(click.Command):
    """The command, with further questions: a plugin's command ``plan --NAME`` is called in its place by ``omni plan --NAME``."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        registry = load_plugins()
        for name in questions():
            if name in args:
                rest = [each for each in args if each != name]
                command: click.Command = load(registry.get("omni_commands", f"plan {name}").target)
                return command.make_context(f"{info_name} {name}", rest, parent, **extra)
        unknown = next((each for each in ("--optimize", "--simulate") if each in args), None)
        if unknown is not None:
            raise click.UsageError(f"{unknown} is not installed; try: pip install omni-planner", parent)
        return super().make_context(info_name, args, parent, **extra)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        found = questions()
        if found:
            with formatter.section("Further questions, each with options of its own (--help)"):
                formatter.write_dl(list(found.items()))


def questions() -> dict[str, str]:
    """Return the flags by which other distributions' commands are called, ``--optimize``, each with a line about it."""
    components = (component for component, _ in load_plugins().components("omni_commands"))
    return {each.name.removeprefix("plan "): each.summary for each in components if each.name.startswith("plan --")}


@click.command(cls=_Plan)
@with_source
@click.option("--gpus", type=click.IntRange(0), help="Plan for so many GPUs; by default for those of this machine.")
@click.option("--gpu-memory", metavar="SIZE", help="What each of them has, for example 80GiB. Needs --gpus.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(gpus: int | None, gpu_memory: str | None, as_json: bool, **source: Any) -> None:
    """Show where every stage of PIPELINE runs. Fails, and says which setting to turn, if it does not fit."""
    if gpu_memory is not None and gpus is None:
        raise click.UsageError("--gpu-memory needs --gpus")
    resolved = resolve_config(planned_platform(gpus), **source)
    check_placement(resolved)
    notes, devices = dict[str, str](), gpus_of(resolved.config) if gpus is None else _devices(gpus, gpu_memory)
    try:
        placement = placed(resolved.config, Machine(devices, here=gpus is None))
        notes, processes = placement.notes, planned_processes(placement.config)
        here = [process for process in processes if process.host is None]
        # Another host says at the start what it has. A laptop is no reason to refuse the plan of a server.
        found = problems(here, devices if gpus is not None else devices or None)
    except DoesNotFitError as error:
        processes, found = [], [str(error)]
    found = [resolved.located(each) for each in found]
    if as_json:
        document = {"processes": [_plain(each) for each in processes], "notes": notes, "problems": found}
        click.echo(json.dumps(document, indent=2))
        sys.exit(1 if found else 0)
    if processes:
        _show(processes, notes, devices)
    if found:
        raise ConfigError("it does not fit:\n" + "\n".join(found))


def planned_platform(gpus: int | None) -> str | None:
    """Return the platform of a machine with so many GPUs; ``None``: of this one."""
    if not gpus:
        return None if gpus is None else "cpu"
    here = platform()
    return "cuda" if here == "cpu" else here


def _devices(gpus: int, gpu_memory: str | None) -> list[int]:
    return [parse_bytes(gpu_memory) if gpu_memory is not None else 2**63] * gpus


def _show(processes: list[PlannedProcess], notes: dict[str, str], devices: list[int] | None) -> None:
    rows = [("stage", "process", "device", "memory")]
    for process in processes:
        for stage in process.stages:
            gpu, budget = process.gpus.get(stage.name), process.budgets().get(stage.name)
            device = "cpu" if gpu is None else f"gpu {gpu}"
            device += "" if process.host is None else f" on {process.host}"
            rows.append((stage.name, process.name, device, "" if budget is None else str(budget)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
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
