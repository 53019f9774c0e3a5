"""Records docs/pictures/terminal.svg from a real run in a terminal: ``python docs/pictures/terminal.py``.

The commands below are typed into a shell in a pseudo-terminal, a terminal emulator (pyte) keeps the screen, and rich draws
what is on it at the end. Needs omni-demo, omni-commands, Pillow, pyte and rich.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import tempfile
import time
from pathlib import Path

import pyte
from PIL import Image
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, LINES = 92, 24
PROMPT = "$ "

TYPED = [
    ('omni run demo --text "What is your name?" --out reply.wav', PROMPT),
    ("omni run demo --out turn.wav", "> "),
    ("Tell me a story.", "> "),
    ("/image red.png", "[red.png] > "),
    ("What do you see?", "> "),
    ("/quit", PROMPT),
]
"""The commands that are typed, each with the beginning of the last line of its complete answer."""

TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px; \
line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's own template fetches a font; a picture must not."""


def record(folder: str) -> pyte.Screen:
    """Type everything and return the screen.

    Raises:
        TimeoutError: an answer does not come within a minute.
    """
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    screen.write_process_input = lambda data: os.write(ours, data.encode())  # answers to questions about the cursor
    size = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color", "PS1": PROMPT}
    subprocess.run(["stty", "rows", str(LINES), "cols", str(COLUMNS)], stdin=theirs, check=True)
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**os.environ, **size},
        start_new_session=True,
    )
    try:
        wait(ours, stream, screen, PROMPT)
        for line, end in TYPED:
            os.write(ours, line.encode() + b"\r")
            wait(ours, stream, screen, end)
    finally:
        shell.kill()
        shell.wait()
    return screen


def wait(terminal: int, stream: pyte.ByteStream, screen: pyte.Screen, end: str) -> None:
    """Read until the cursor stands behind ``end`` at the beginning of a line, and nothing has come for a second."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        if ready:
            stream.feed(os.read(terminal, 65536))
        elif screen.display[screen.cursor.y].startswith(end) and screen.cursor.x == len(end):
            return
    raise TimeoutError("\n".join(screen.display))


def drawn(screen: pyte.Screen) -> str:
    """The screen as SVG, without the prompt and the empty lines at its end."""
    rows = []
    for y in range(screen.lines):
        row = Text()
        for x in range(screen.columns):
            cell = screen.buffer[y][x]
            row.append(cell.data, Style(color=color(cell.fg), bold=cell.bold, italic=cell.italics))
        row.rstrip()
        rows.append(row)
    while rows and rows[-1].plain.strip() in ("", PROMPT.strip()):
        rows.pop()
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        for row in rows:
            console.print(row, no_wrap=True)
        return console.export_svg(title="omni", code_format=TEMPLATE, unique_id="terminal")


def color(name: str) -> str | None:
    """A colour of pyte's by rich's name for it."""
    if name == "default":
        return None
    if len(name) == 6 and all(each in "0123456789abcdef" for each in name):
        return f"#{name}"
    return {"brown": "yellow"}.get(name, name.replace("bright", "bright_"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Image.new("RGB", (64, 64), (200, 20, 20)).save(Path(folder) / "red.png")
        Path(__file__).with_name("terminal.svg").write_text(drawn(record(folder)))


if __name__ == "__main__":
    main()
