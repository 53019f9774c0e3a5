"""The folder of prepared weights, ``omni/weights`` in the user's cache: its bound, what lies there, and removing it. Imports no torch."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from omni_core.api import ConfigError, parse_bytes
from omni_torch.checkpoints.folders import cache_folder, made_folders
from omni_torch.checkpoints.headers import LARGEST_HEADER

VARIABLE = "OMNI_WEIGHTS_CACHE"
"""The environment variable of the bound: a size such as ``20GiB``, or ``off``, which switches the cache off."""

LARGEST = 20 << 30
"""Bytes that the folder has at most, unless :data:`VARIABLE` says otherwise."""

LEFT = 1 << 30
"""Bytes of the disk that are left free."""

ABANDONED = 3600
"""Seconds without a change after which a file that is being written counts as left by a process that has ended."""

GONE = 86_400
"""Seconds after which weights are removed whose checkpoint is gone: its disk may come back before."""

SUFFIX = ".safetensors"


@frozen
class Entry:
    """A file of prepared weights. ``used``: when it was mapped last, seconds since the epoch."""

    path: Path
    nbytes: int
    used: float

    @property
    def name(self) -> str:
        """Return the key."""
        return self.path.name.removesuffix(SUFFIX)

    def origin(self) -> dict[str, str]:
        """Return what the file says of itself: ``network``, ``checkpoint`` and, in JSON, ``options``; nothing if it is damaged."""
        try:
            with self.path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                found = json.loads(file.read(min(length, LARGEST_HEADER)))["__metadata__"]
            return {name: str(found[name]) for name in ("network", "checkpoint", "options")}
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def folder() -> Path:
    """Return the folder, which may not exist."""
    return cache_folder() / "weights"


def bound() -> int:
    """Return how many bytes the folder may have.

    Raises:
        ConfigError: the environment variable is no size.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return LARGEST
    if text.lower() == "off":
        return 0
    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}: must be a size such as 20GiB, or off: {error}") from None


def path_of(key: str) -> Path:
    """Return where the weights of a key lie."""
    return folder() / f"{key}{SUFFIX}"


def entries() -> list[Entry]:
    """Return the files, those used last first."""
    found = []
    for path in folder().glob(f"*{SUFFIX}"):
        try:
            status = path.stat()
        except OSError:  # removed meanwhile
            continue
        found.append(Entry(path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: -entry.used)


@contextlib.contextmanager
def claim(nbytes: int) -> Iterator[None]:
    """Make room for a file of ``nbytes``, which is to have that size before the end of the block: then others count it.

    Raises:
        OSError: as :func:`make_room`.
    """
    folder().mkdir(parents=True, exist_ok=True)
    lock = os.open(folder(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        make_room(nbytes)
        yield
    finally:
        os.close(lock)


def make_room(nbytes: int) -> None:
    """Remove the files that were used longest ago, until ``nbytes`` more fit; and before them those of checkpoints that are gone, if they
    were not used for :data:`GONE` seconds. Processes that have mapped one keep it.

    Raises:
        OSError: they do not fit into the bound, or on the disk.
    """
    most = bound()
    if nbytes > most:
        raise OSError(f"they have {nbytes / 2**30:.1f} GiB, the cache may have {most / 2**30:.1f} GiB ({VARIABLE})")
    folder().mkdir(parents=True, exist_ok=True)
    written = 0
    for path in folder().glob("writing-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED:  # of a process that ended while it wrote
                path.unlink()
            else:
                written += path.stat().st_size
    if written + nbytes > most:
        sizes = f"{nbytes / 2**30:.1f} GiB, other processes write {written / 2**30:.1f} GiB"
        raise OSError(f"they have {sizes}, the cache may have {most / 2**30:.1f} GiB ({VARIABLE})")
    for each in entries():
        if time.time() - each.used > GONE and _is_gone(each.origin().get("checkpoint")):
            each.path.unlink(missing_ok=True)
    kept, free, removed = entries(), shutil.disk_usage(folder()).free, 0
    total = written + sum(each.nbytes for each in kept)
    oldest: list[Entry] = []
    while kept and (total - removed + nbytes > most or free + removed < nbytes + LEFT):
        oldest.append(kept.pop())
        removed += oldest[-1].nbytes
    if free + removed < nbytes + LEFT:  # nothing is removed in vain
        sizes = f"{nbytes / 2**30:.1f} GiB, and {folder()} has {free / 2**30:.1f} GiB free"
        raise OSError(f"they have {sizes}, of which {LEFT >> 30} GiB stays free")
    for each in oldest:
        each.path.unlink(missing_ok=True)


def _is_gone(checkpoint: str | None) -> bool:
    """Return whether a folder is not there; one that cannot be looked at may be."""
    try:
        return checkpoint is not None and not os.stat(checkpoint)
    except OSError as error:
        return isinstance(error, FileNotFoundError)


def touch(path: Path) -> None:
    """Note that a file is used now; nothing happens in a folder that cannot be written."""
    with contextlib.suppress(OSError):
        os.utime(path)


def made() -> list[Entry]:
    """Return the folders that were made from files, those made last first; ``used`` is when."""
    return [
        Entry(path, sum(each.stat().st_size for each in path.iterdir()), path.stat().st_mtime)
        for path in made_folders()
    ]


def clear(names: tuple[str, ...] = ()) -> tuple[int, int]:
    """Remove the weights and folders whose names begin with one of ``names``, or all; return their number and bytes.

    What interrupted processes left is removed too, with all.

    Raises:
        ConfigError: none has such a name.
    """
    found = [*entries(), *made()]
    for name in names:
        if not any(each.name.startswith(name) for each in found):
            raise ConfigError(f"{name}: nothing in the cache has this name; `omni cache` lists what there is")
    chosen = [each for each in found if not names or each.name.startswith(names)]
    for each in chosen:
        if each.path.is_dir():
            shutil.rmtree(each.path, ignore_errors=True)
        else:
            each.path.unlink(missing_ok=True)
    if not names:
        for left in folder().glob("writing-*"):
            left.unlink(missing_ok=True)
    return len(chosen), sum(each.nbytes for each in chosen)
