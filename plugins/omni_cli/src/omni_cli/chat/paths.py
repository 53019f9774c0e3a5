"""Paths as people type, quote, paste and drop them onto a terminal."""

from __future__ import annotations

import mimetypes
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

MEDIA = ("image", "audio", "video")
"""Kinds of files that a message may hold."""


def read_paths(text: str) -> list[Path]:
    """Return the paths in the argument of a command: one with spaces as it is, or several, quoted or escaped as in a shell.

    Raises:
        ValueError: a quotation mark is not closed.
    """
    text = text.strip()
    if text and (whole := _path(text)).exists():
        return [whole]
    return [_path(word) for word in shlex.split(text)]


def read_path(text: str) -> Path | None:
    """Return the one path in ``text``, quoted, escaped, or with spaces as it is; ``None`` where there is none, or more than one.

    Raises:
        ValueError: a quotation mark is not closed.
    """
    text = text.strip()
    words = shlex.split(text) if text.startswith(("'", '"')) or "\\" in text else [text]
    return _path(words[0]) if len(words) == 1 and words[0] else None


def dropped_files(line: str) -> list[tuple[str, Path]]:
    """Return kind and path of the files that a line consists of, as terminals paste them on drag and drop; empty if it is no such line."""
    if not line.lstrip().startswith(("/", "'", '"', "file://", "~")):
        return []
    try:
        paths = read_paths(line)
    except ValueError:
        return []
    found = [(kind_of(path), path) for path in paths]
    files = [(kind, path) for kind, path in found if kind is not None and path.is_file()]
    return files if len(files) == len(paths) else []


def kind_of(path: Path) -> str | None:
    """Return which of :data:`MEDIA` a file is, by its name."""
    kind = (mimetypes.guess_type(path.name)[0] or "").partition("/")[0]
    return kind if kind in MEDIA else None


def _path(text: str) -> Path:
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~somebody who does not exist
        return Path(text)
