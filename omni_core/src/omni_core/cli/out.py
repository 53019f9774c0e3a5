"""``--out``: the file that speech is written to, or standard output."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

STANDARD_OUTPUT = Path("-")


def check_out(path: Path, *, no_speech: bool = False) -> None:
    """Refuse a ``--out`` that speech cannot or must not be written to.

    Raises:
        click.UsageError: a folder that cannot be written, a terminal, or a file that holds something other than sound.
    """
    if no_speech:
        raise click.UsageError("--out writes speech; remove --no-speech")
    if path == STANDARD_OUTPUT:
        if sys.stdout.isatty():
            raise click.UsageError("--out - writes WAV data to standard output; pipe it: --out - | aplay -")
        return
    check_folder("--out", path)
    if path.is_dir():
        raise click.UsageError(f"--out {path} is a folder; name a file in it")
    if path.is_file() and not is_wav(path):
        raise click.UsageError(f"--out {path} exists and is no WAV file; choose another name or delete it first")


def check_folder(option: str, path: Path) -> None:
    """Raise ``click.UsageError`` if no file can be made at ``path``."""
    folder = path.absolute().parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise click.UsageError(f"{option} {path}: the folder {folder} does not exist or cannot be written")


def is_wav(path: Path) -> bool:
    """Return whether the file is empty or begins as a WAV file does."""
    with path.open("rb") as file:
        head = file.read(12)
    return not head or (head[:4] == b"RIFF" and head[8:] == b"WAVE")
