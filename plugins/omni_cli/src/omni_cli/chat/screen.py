"""Show a chat: replies wrapped at words, notices, errors, and a status line while one waits."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from omni_cli.chat.wrapping import WordWrap, printable
from omni_cli.request.display import progress


class Screen:
    """A terminal. ``NO_COLOR`` turns colours off, as rich reads it."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._status: Status | None = None
        self._states: dict[str, str] = {}
        self._wrap = WordWrap()

    def notice(self, text: str) -> None:
        """Print a line beside the reply."""
        self._line(text, "dim")

    def warning(self, text: str) -> None:
        """Print a line that the reader should not miss."""
        self._line(text, "yellow")

    def error(self, text: str) -> None:
        """Print what went wrong."""
        self._line(f"Error: {text}", "red")

    def stage(self, name: str, state: str) -> None:
        """Show the progress of the start."""
        self._states[name] = state
        self.status(progress(self._states))

    def text(self, piece: str) -> None:
        """Show a piece of the reply."""
        self.clear()
        self._write(self._wrap.feed(piece, self.console.width))

    def audio(self, seconds: float) -> None:
        """Show the seconds of speech so far, once the text is complete."""
        if not self._wrap.open_line:
            self.status(f"speech: {seconds:.1f} s")

    def step(self, done: int, steps: int) -> None:
        """Show how far an image is."""
        self.status(f"step {done} of {steps}")

    def status(self, line: str) -> None:
        """Show a line that changes and goes."""
        shown = Text(line, style="dim")
        shown.truncate(self.console.width - 3, overflow="ellipsis")  # beside the spinner
        if self._status is None:
            self.end_line()  # a status line takes the place of the line that it begins on
            self._status = self.console.status(shown, spinner="dots")
            self._status.start()
        else:
            self._status.update(shown)

    def clear(self) -> None:
        """Remove the status line."""
        status, self._status = self._status, None
        if status is not None:
            status.stop()

    def end_line(self) -> None:
        """End the reply's text."""
        self.clear()
        if self._wrap.open_line:
            self._write(self._wrap.feed("\n", self.console.width))

    def end_turn(self) -> None:
        """End a reply with an empty line."""
        self.end_line()
        self.console.print()

    def _line(self, text: str, style: str) -> None:
        self.end_line()
        self.console.print(Text(printable(text), style=style))

    def _write(self, text: str) -> None:
        if text:
            self.console.file.write(text)  # rich would remove the movements of the cursor
            self.console.file.flush()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.end_line()
