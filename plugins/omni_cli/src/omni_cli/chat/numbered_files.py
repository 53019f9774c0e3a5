"""Names for the speech of a chat's turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class NumberedFiles:
    """Names ``reply-1.wav``, ``reply-2.wav``, ... for ``reply.wav``. Numbers that are taken are left out."""

    def __init__(self, out: Path) -> None:
        self._names = _free(out)

    def next(self) -> Path:
        """Return the path of the next file."""
        return next(self._names)


def _free(out: Path) -> Iterator[Path]:
    number = 0
    while True:
        number += 1
        path = out.with_name(f"{out.stem}-{number}{out.suffix or '.wav'}")
        if not path.exists():
            yield path
