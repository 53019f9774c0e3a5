"""Names for the speech of a chat's turns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path


def numbered_files(out: Path) -> Iterator[Path]:
    """Yield ``reply-1.wav``, ``reply-2.wav``, ... for ``reply.wav``. Numbers that are taken are left out."""
    for number in count(1):
        path = out.with_name(f"{out.stem}-{number}{out.suffix or '.wav'}")
        if not path.exists():
            yield path
