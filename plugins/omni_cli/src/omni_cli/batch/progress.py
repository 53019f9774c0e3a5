"""The progress of a batch on standard error: a bar in a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from omni_cli.runs import duration

SECONDS_BETWEEN_LINES = 10.0


class BatchProgress:
    """Counts, rate and time left.

    Args:
        total: lines of the input.
        done: those that were answered before.
    """

    def __init__(self, total: int, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._before, self._clock = total, done, clock
        self._start = self._said = clock()
        self._progress: Progress | None = None
        if sys.stderr.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
            self._progress = Progress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True)
            self._task = self._progress.add_task("", total=total, completed=done, note="")

    def update(self, done: int, failed: int) -> None:
        """Show that ``done`` lines are answered, ``failed`` of them by an error."""
        note = self.note(done, failed)
        if self._progress is not None:
            self._progress.update(self._task, completed=done, note=note)
        elif self._clock() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = self._clock()
            click.echo(f"{done} of {self._total} answered, {note}", err=True)

    def note(self, done: int, failed: int) -> str:
        """Return rate, time left and errors in words."""
        rate = (done - self._before) / max(self._clock() - self._start, 1e-3)
        left = f", {duration((self._total - done) / rate)} left" if rate else ""
        return f"{rate:.1f}/s{left}" + (f", {failed} with errors" if failed else "")

    def __enter__(self) -> BatchProgress:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._progress is not None:
            self._progress.stop()
