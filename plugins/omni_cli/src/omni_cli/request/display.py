"""Display of a running pipeline: text as it is made, and a status line; plain lines where there is no terminal."""

from __future__ import annotations

import shutil
import sys
from typing import Any, TextIO

import click


class Display:
    """A terminal, or two pipes: the reply goes to standard output and everything else to standard error.

    Args:
        quiet: print no text (``--json`` prints the whole reply at the end).
        text_to: where the reply's text goes instead of standard output.
    """

    def __init__(self, *, quiet: bool = False, text_to: TextIO | None = None) -> None:
        self._quiet = quiet
        self._text = text_to or sys.stdout
        self._live = sys.stderr.isatty()
        self._shown = False
        self._states: dict[str, str] = {}
        self._open_line = False

    def notice(self, text: str) -> None:
        """Print a line beside the reply."""
        self.end_line()
        click.echo(text, err=True)

    def stage(self, name: str, state: str) -> None:
        """Show the progress of the start."""
        self._states[name] = state
        if self._live:
            self._show(progress(self._states))
        elif state != "starting" and not self._quiet:
            ready = sum(each == "ready" for each in self._states.values())
            click.echo(f"[{ready}/{len(self._states)}] {name}: {state}", err=True)

    def text(self, piece: str) -> None:
        """Print a piece of the reply."""
        self.clear()
        if not self._quiet:
            self._text.write(piece)
            self._text.flush()
            self._open_line = not piece.endswith("\n")

    def audio(self, seconds: float) -> None:
        """Show the seconds of speech so far."""
        if self._live and not self._open_line:
            self._show(f"speech: {seconds:.1f} s")

    def step(self, done: int, steps: int) -> None:
        """Show how far an image is."""
        if self._live and not self._open_line:
            self._show(f"step {done} of {steps}")

    def _show(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        click.echo("\r\x1b[K" + line[:width], err=True, nl=False)
        self._shown = True

    def clear(self) -> None:
        """Remove the status line."""
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._shown = False

    def end_line(self) -> None:
        """Begin a new line, if there is an unfinished one."""
        self.clear()
        if self._open_line:
            self._text.write("\n")
            self._text.flush()
            self._open_line = False

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.end_line()


def progress(states: dict[str, str]) -> str:
    """Return the progress of a start as a line: ``starting: 2 of 8 stages ready, waiting for ...``."""
    waiting = [stage for stage, state in states.items() if state != "ready"]
    ready = f"starting: {len(states) - len(waiting)} of {len(states)} stages ready"
    return ready + (f", waiting for {', '.join(waiting)}" if waiting else "")
