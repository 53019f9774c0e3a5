"""``omni doctor``: what this machine has, what is wrong, and what to do about it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import attrs
import click

from omni_core import __version__
from omni_core.cli.plugins import clashes
from omni_core.config.devices import detect
from omni_core.config.placement import gib
from omni_core.config.schema import PipelineConfig
from omni_core.hookspecs import HOOKS, works
from omni_core.launch.requirements import ours, unmet
from omni_core.plugins import Defect, PluginRegistry, PluginStatus, load_plugins

_LIBRARIES = ("torch", "transformers", "msgpack", "numpy")
_SMALL_SHARED_MEMORY = 512 * 2**20


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor(as_json: bool) -> None:
    """Look at this machine and the installation. Exits with 1 if something needs attention."""
    registry = load_plugins()
    answers = [
        (f"{HOOKS[hook].kind} {component.name}", answer)
        for hook, component, _, answer in registry.check()
        if answer is not None
    ]
    machine = _machine()
    advice = list(_about(machine["shared_memory_free"], registry))
    advice += [f"{name}: {answer}" for name, answer in answers if isinstance(answer, Defect)]
    advice += [line for each in ours() for line in unmet(each)]
    report = {
        "omni_core": __version__,
        "machine": machine,
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "plugins": [
            {"name": each.name, "status": each.status.value, "distribution": each.distribution, "version": each.version}
            for each in registry.records
        ],
        "warnings": {name: answer for name, answer in answers if works(answer)},
        "not_usable": {name: answer for name, answer in answers if not (works(answer) or isinstance(answer, Defect))},
        "to_do": advice,
    }
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    sys.exit(1 if advice else 0)


def _machine() -> dict[str, Any]:
    """Return the resources of this machine; sizes in bytes, ``None`` where they cannot be known."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": detect(),
        "shared_memory_free": shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _about(shared_memory: int | None, registry: PluginRegistry) -> Iterator[str]:
    """Yield what to do about the machine and the plugins, a line each."""
    if shared_memory is not None and shared_memory < _SMALL_SHARED_MEMORY:
        yield "shared memory is small; give the container more (docker run --shm-size=2g)"
    for record in registry.records:
        if record.status is PluginStatus.BROKEN:
            yield f"plugin {record.name} is broken ({record.reason}); see: omni plugins show {record.name}"
        elif record.status is PluginStatus.INCOMPATIBLE:
            yield f"plugin {record.name}: {record.reason}"
        yield from (f"plugin {record.name}: {line}" for line in record.warnings)
    yield from clashes(registry)
    default = attrs.fields(PipelineConfig).relay_backend.default
    if default not in registry.names("omni_relays"):
        yield (
            f"the default relay {default!r} is not installed, which pipelines of several processes need; "
            f"try: pip install omni-relay-{default}"
        )
    if not list(registry.components("omni_pipelines")):
        yield "no pipeline is installed; try: pip install omni-qwen3"


def _print(report: dict[str, Any]) -> None:
    machine = report["machine"]
    click.echo(f"omni-core {report['omni_core']}, Python {machine['python']}, {machine['platform']}")
    gpus = "not known" if machine["gpus"] is None else ", ".join(map(gib, machine["gpus"])) or "none"
    click.echo(f"cores: {machine['cores']}, memory: {gib(machine['memory'])}, GPUs: {gpus}")
    if machine["shared_memory_free"] is not None:
        click.echo(f"shared memory free: {gib(machine['shared_memory_free'])}")
    for name, installed in report["libraries"].items():
        click.echo(f"{name} {installed}" if installed else f"{name}: not installed")
    click.echo(f"plugins: {len(report['plugins'])}")
    for each in report["plugins"]:
        click.echo(f"  {each['name']} {each['status']} ({each['distribution']} {each['version']})")
    for name, answer in report["warnings"].items():
        click.echo(f"  {name}: {answer}")
    if report["not_usable"]:
        click.echo("optional, not usable on this machine:")
        for name, answer in report["not_usable"].items():
            click.echo(f"  {name}: {answer}")
    for line in report["to_do"]:
        click.echo(f"To do: {line}")
    if not report["to_do"]:
        click.echo("All is well.")
