"""Gives memory back to the system that a process has needed only to load its networks: freed blocks, and pages of files that were read."""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_WEIGHTS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S{3}p .* /.*\.(?:safetensors|gguf)$")
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")


def return_freed_memory() -> None:
    """Return memory to the system: what glibc keeps between live tensors, half of a quantised model's size, and mapped pages of weights.

    A kernel's layout of a weight is a copy; the pages of the file that it was made of would stay as long as a tensor of that file lives.
    Those that are still read come back from the page cache.
    """
    libc = ctypes.CDLL(None)
    if (trim := getattr(libc, "malloc_trim", None)) is not None:
        trim(0)
    if sys.platform == "linux":
        with suppress(OSError):
            for begin, end in unchanged(Path("/proc/self/smaps").read_text().splitlines()):
                libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def unchanged(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield where private mappings of weight files begin and end in which nothing was written: their pages are the file's.

    Args:
        smaps: the lines of ``/proc/PID/smaps``.
    """
    place = None
    for line in smaps:
        if found := _WEIGHTS.match(line):
            place = int(found[1], 16), int(found[2], 16)
        elif _MAPPING.match(line):
            place = None
        elif place is not None and line.startswith("Anonymous:") and line.split()[1] == "0":
            yield place
