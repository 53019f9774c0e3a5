"""The running pipelines of this user: their folders, the processes that own them, and what they say of themselves."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from attrs import frozen
from click.shell_completion import CompletionItem

from omni_cli.status_client import StatusClient, is_private, running
from omni_core.api import ConfigError, OmniError, did_you_mean
from omni_core.runtime_api import StatusReport, temporary_directory

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the other end of a Unix socket."""


@frozen
class Run:
    """A running pipeline.

    Attributes:
        folder: its run folder.
        pid: the process that opened it.
        command: the command line of that process.
        report: its status; ``None`` if it does not answer.
    """

    folder: Path
    pid: int
    command: str
    report: StatusReport | None

    @property
    def name(self) -> str:
        return self.report.pipeline if self.report is not None else "?"

    @property
    def state(self) -> str:
        """``ready``, another state that all units have, or the units that are not ready with theirs."""
        if self.report is None:
            return "does not answer"
        others: dict[str, list[str]] = {}
        for name, unit in self.report.health.items():
            if unit["state"] != "ready":
                others.setdefault(unit["state"], []).append(name)
        if len(others) == 1 and sum(map(len, others.values())) == len(self.report.health):
            return next(iter(others))
        return ", ".join(f"{', '.join(names)} {state}" for state, names in others.items()) or "ready"

    @property
    def title(self) -> str:
        """Its name, process and uptime."""
        uptime = f", up {duration(self.report.uptime)}" if self.report is not None else ""
        return f"{self.name} (pid {self.pid}{uptime}): {self.folder}"

    def as_document(self) -> dict[str, Any]:
        """Return it as plain values for JSON."""
        requests = self.report.statistics["coordinator"]["requests"] if self.report is not None else None
        return {
            "folder": str(self.folder),
            "name": self.name if self.report is not None else None,
            "pid": self.pid,
            "command": self.command,
            "uptime": self.report.uptime if self.report is not None else None,
            "state": self.state,
            "requests": requests,
        }


def owner(folder: Path) -> int | None:
    """Return the process of this user that runs the pipeline of a folder; ``None`` if it has ended, or is another user's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(folder / "coordinator.sock"))
        except OSError:
            return None
        given = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(given)
    return int(pid) if user == os.getuid() else None


def duration(seconds: float) -> str:
    """Return a time as people say it, such as ``3 min 20 s``."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def runs(folders: Sequence[Path] | None = None) -> list[Run]:
    """Return the running pipelines, by default those in the folder for temporary files."""
    return asyncio.run(_look(running() if folders is None else folders))


async def _look(folders: Sequence[Path]) -> list[Run]:
    owners = {folder: pid for folder in folders if (pid := owner(folder)) is not None}
    reports = await asyncio.gather(*map(_report, owners))
    return [
        Run(folder, pid, _command(pid), report) for (folder, pid), report in zip(owners.items(), reports, strict=True)
    ]


async def _report(folder: Path) -> StatusReport | None:
    with suppress(OmniError), StatusClient(folder) as client:
        return await client.status()
    return None


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()


def chosen(asked: str | None) -> Run:
    """Return the pipeline that a command line names: by folder, process or name; without one, the only one that runs.

    Raises:
        ConfigError: there is none, or there are several.
    """
    if asked is not None and Path(asked).is_dir():
        folder = Path(asked).resolve()
        if not is_private(folder):
            raise ConfigError(
                f"{asked} is no run folder of this user: that is this user's own and closed to others (0700)"
            )
        found = runs([folder])
        if not found:
            raise ConfigError(f"no pipeline runs in {asked}; it has ended, or this is no run folder")
        return found[0]
    there = runs()
    found = [run for run in there if asked is None or asked in (run.name, str(run.pid), run.folder.name)]
    if len(found) == 1:
        return found[0]
    listed = "".join(f"\n  {run.title}" for run in found or there)
    if found:
        raise ConfigError(f"several pipelines run; name one by its pid or folder:{listed}")
    if there:
        names = [*(run.name for run in there), *(str(run.pid) for run in there)]
        raise ConfigError(f"no running pipeline is called {asked!r}{did_you_mean(asked, names)}{listed}")
    raise ConfigError(
        f"no pipeline runs here (none of {temporary_directory()}/omni-*); "
        "if its config sets endpoints.base_path, give its folder"
    )


def complete_run(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete the RUN of a command: pids with names, or folders."""
    if "/" in begun:
        return [CompletionItem(begun, type="dir")]
    items = [CompletionItem(str(run.pid), help=f"{run.name} {run.folder}") for run in runs()]
    return [item for item in items if str(item.value).startswith(begun)]


run_argument = click.argument("run", required=False, shell_complete=complete_run)
"""RUN of a command, for :func:`chosen`."""
