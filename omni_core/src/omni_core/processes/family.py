"""The processes that a stage process starts: forks, programs, and theirs. They end with it, however they detach themselves.

All inherit an environment variable with the name of the run and the pid of the stage process, which ``/proc`` shows of programs and of
forks alike. A program that is to go on must be started without it, in a session of its own.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

MARK = "OMNI_PROCESS"
MARK_ROOM = {MARK: "-" * 80}
"""For the environment of an interpreter that becomes stage processes, so that :func:`take_mark` has room in it."""

SWEEP = """
sweep() {
  for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    found=$(LC_ALL=C grep -alFs -e "OMNI_PROCESS=$1" /proc/[0-9]*/environ)
    [ -n "$found" ] || return 0
    for each in $found; do each=${each#/proc/}; kill -9 "${each%/environ}" 2>/dev/null; done
  done
}
"""
"""A shell function: kill all that bear a mark. Again until there are none: one may have forked meanwhile. Not for ever: one may hang."""


def run_mark(directory: str | Path) -> str:
    """Return what the marks of all stage processes of a run begin with on one machine, from its folder there."""
    return re.sub(r"\W", "_", os.path.basename(directory)) + "/"


def mark_of(run: str, pid: int) -> str:
    """Return the mark of a stage process and its family."""
    return f"{run}{pid}."


def take_mark(run: str) -> None:
    """Mark this process and all that it will start.

    The environment is changed in place, where the kernel reads it: forks have no other than this.
    """
    mark = mark_of(run, os.getpid())
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    place = getenv(MARK.encode())
    if place and len(ctypes.string_at(place)) >= len(mark):
        ctypes.memmove(place, mark.encode() + b"\0", len(mark) + 1)
    os.environ[MARK] = mark


def end_family(run: str, pid: int) -> None:
    """Kill what is left of the family of a stage process that has ended; a few milliseconds. From any thread."""
    with suppress(OSError):  # no process can be started: the end of the run does the same
        subprocess.run(["/bin/sh", "-c", SWEEP + 'sweep "$1"', "omni-sweep", mark_of(run, pid)], env=unmarked())


def unmarked() -> dict[str, str]:
    """Return the environment of this process for one that is to outlive it."""
    return {name: value for name, value in os.environ.items() if name != MARK}
