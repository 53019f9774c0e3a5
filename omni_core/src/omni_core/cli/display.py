"""Display of a running pipeline: text as it is made, and a status line; plain lines where there is no terminal."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.console import Console
from rich.status import Status


class Display:
    """A terminal, or two pipes: the reply goes to standard output and everything else to standard error.

    Args:
        quiet: print no text (``--json`` prints the whole reply at the end).
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._live = self._console.is_terminal and sys.stdout.isatty()
        self._status: Status | None = None
        self._states: dict[str, str] = {}
        self._open_line = False

    def notice(self, text: str) -> None:
        """Print a line beside the reply."""
        self.end_line()
        click.echo(text, err=True)

    def stage(self, name: str, state: str) -> None:
        """Show the progress of the start."""
        self._states[name] = state
        ready = sum(each == "ready" for each in self._states.values())
        waiting = [stage for stage, each in self._states.items() if each != "ready"]
        if self._live:
            self._show(
                f"starting: {ready} of {len(self._states)} stages ready"
                + (f", waiting for {', '.join(waiting)}" if waiting else "")
            )
        elif state != "starting" and not self._quiet:
            click.echo(f"[{ready}/{len(self._states)}] {name}: {state}", err=True)

    def text(self, piece: str) -> None:
        """Print a piece of the reply."""
        self.clear()
        if not self._quiet:
            sys.stdout.write(piece)
            sys.stdout.flush()
            self._open_line = not piece.endswith("\n")

    def audio(self, seconds: float) -> None:
        """Show the seconds of speech so far."""
        if self._live and not self._open_line:
            self._show(f"speech: {seconds:.1f} s")

    def _show(self, line: str) -> None:
        if self._status is None:
            self._status = self._console.status(line)
            self._status.start()
        else:
            self._status.update(line)

    def clear(self) -> None:
        """Remove the status line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def end_line(self) -> None:
        self.clear()
        if self._open_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._open_line = False

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.end_line()
