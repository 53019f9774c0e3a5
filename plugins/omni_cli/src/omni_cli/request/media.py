"""Files of a message, looked at before a pipeline starts: a missing file, or one of another kind, is told at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class MediaFile(click.Path):
    """A file that can be an image, audio or a video.

    Args:
        kind: ``image``, ``audio`` or ``video``.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(exists=True, dir_okay=False, readable=True, path_type=Path)
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Any = super().convert(value, param, ctx)
        problem = problem_of(Path(os.fsdecode(path)), self.kind)
        if problem is not None:
            self.fail(problem, param, ctx)
        return path


def problem_of(path: Path, kind: str) -> str | None:
    """Return why a file cannot be of a kind of media, or ``None``. Without omni-media, the stage that reads the file finds out."""
    try:
        from omni_media.files import problem_of
    except ImportError:
        return None
    return problem_of(path, kind)
