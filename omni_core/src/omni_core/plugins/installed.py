"""The entry points of installed distributions, read from the files that installers write.

``importlib.metadata`` yields the same, and parses all metadata of every distribution for it: a third of the time of ``omni --help``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from typing import NamedTuple

Read = Callable[[str], str | None]
"""Returns the text of a file of a distribution's metadata; ``None`` if it is not there."""


class EntryPoint(NamedTuple):
    """One entry point, with the name and version of its distribution."""

    group: str
    name: str
    value: str
    distribution: str
    version: str


def entry_points(*groups: str) -> Iterator[EntryPoint]:
    """Yield the entry points of some groups. Of a distribution that is on the path twice, the first is used."""
    seen = set()
    for place in sys.path:
        for name, read in _archived(place) if os.path.isfile(place) else _unpacked(place or os.curdir):
            key = re.sub(r"[-_.]+", "-", name).lower()
            if key in seen:
                continue
            seen.add(key)
            for group, point, value in _of_groups(groups, read("entry_points.txt") or ""):
                headers = _headers(read("METADATA") or read("PKG-INFO") or "")
                yield EntryPoint(group, point, value, headers.get("Name", name), headers.get("Version", "unknown"))


def _unpacked(folder: str) -> Iterator[tuple[str, Read]]:
    """Yield name and metadata of each distribution in a folder of the path."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for each in names:
        if each.lower().endswith(
            (".dist-info", ".egg-info")
        ):  # NAME-VERSION.dist-info; NAME.egg-info of old editable installs
            yield each.rpartition(".")[0].partition("-")[0], partial(_read, os.path.join(folder, each))


def _read(folder: str, name: str) -> str | None:
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _archived(path: str) -> Iterator[tuple[str, Read]]:
    """Yield name and metadata of each distribution in a zip file of the path."""
    from importlib.metadata import distributions

    for distribution in distributions(path=[path]):
        yield distribution.name, distribution.read_text


def _of_groups(groups: tuple[str, ...], text: str) -> Iterator[tuple[str, str, str]]:
    """Yield group, name and value of the entry points of some sections of ``entry_points.txt``."""
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
        elif section in groups and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield section, name.strip(), value.strip()


def _headers(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in takewhile(str.strip, text.splitlines()) if ": " in line)
