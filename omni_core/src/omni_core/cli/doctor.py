"""``omni doctor``: what this machine has, what is wrong, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version

import click

from omni_core import __version__
from omni_core.hookspecs import works
from omni_core.plugins import load_plugins

_LIBRARIES = ("torch", "transformers", "msgpack", "numpy")
_SMALL_SHARED_MEMORY = 512 * 2**20


@click.command()
def doctor() -> None:
    """Look at this machine and the installation. Exits with 1 if something needs attention."""
    advice = []
    click.echo(f"omni-core {__version__}, Python {platform.python_version()}, {platform.platform()}")
    click.echo(f"cores: {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}")
    if os.path.isdir("/dev/shm"):
        free = shutil.disk_usage("/dev/shm").free
        click.echo(f"shared memory free: {free / 2**20:.0f} MiB")
        if free < _SMALL_SHARED_MEMORY:
            advice.append("shared memory is small; give the container more (docker run --shm-size=2g)")
    for name in _LIBRARIES:
        try:
            click.echo(f"{name} {version(name)}")
        except PackageNotFoundError:
            click.echo(f"{name}: not installed")
    registry = load_plugins()
    click.echo(f"plugins: {len(registry.records)}")
    for record in registry.records:
        click.echo(f"  {record.name} {record.status.value} ({record.distribution} {record.version})")
        if record.status.value == "broken":
            advice.append(f"plugin {record.name} is broken ({record.reason}); see: omni plugins show {record.name}")
        elif record.status.value == "incompatible":
            advice.append(f"plugin {record.name}: {record.reason}")
    for _, component, _, answer in registry.check():
        if not works(answer):
            click.echo(f"  {component.name}: cannot work here: {answer}")
        elif answer is not None:
            click.echo(f"  {component.name}: {answer}")
    advice += [f"provided twice: {line}; uninstall one" for line in registry.duplicates()]
    if not list(registry.components("omni_pipelines")):
        advice.append("no pipeline is installed; try: pip install omni-qwen3")
    for line in advice:
        click.echo(f"To do: {line}")
    if not advice:
        click.echo("All is well.")
    sys.exit(1 if advice else 0)
