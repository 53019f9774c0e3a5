"""Entry points are those that importlib.metadata finds, in folders, links of editable installs and archives."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from omni_core.plugins.installed import EntryPoint, entry_points


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the first of two folders on the path, ``first`` and ``second``; nothing else is on it but a missing file."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    entries = [tmp_path / "first", tmp_path / "second", tmp_path / "wheel.zip", tmp_path / "missing.zip"]
    monkeypatch.setattr(sys, "path", [str(each) for each in entries])
    return tmp_path / "first"


def write(folder: Path, points: str, name: str = "My.Plugin", version: str = "1.2", metadata: str = "METADATA") -> None:
    folder.mkdir(parents=True)
    (folder / "entry_points.txt").write_text(points)
    (folder / metadata).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: of its readme\n")


def test_a_section_is_read_as_installers_write_it(path: Path) -> None:
    points = "[console_scripts]\nx = y:z\n\n[omni]\n# a comment = none\na = one.plugin [relays-1]\nb=two\n[omni.other]\nc = d\n"
    write(path / "my_plugin-1.2.dist-info", points)
    found = [
        EntryPoint("omni", "a", "one.plugin [relays-1]", "My.Plugin", "1.2"),
        EntryPoint("omni", "b", "two", "My.Plugin", "1.2"),
    ]
    assert list(entry_points("omni")) == found


@pytest.mark.parametrize("folder", ["my_plugin.egg-info", "My.Plugin-1.2-py3.11.egg-info"])
def test_an_old_editable_install_is_found(path: Path, folder: str) -> None:
    write(path / folder, "[omni]\na = b\n", metadata="PKG-INFO")
    assert list(entry_points("omni")) == [EntryPoint("omni", "a", "b", "My.Plugin", "1.2")]


def test_of_a_distribution_that_is_there_twice_the_first_is_used(path: Path) -> None:
    write(path / "My.Plugin-2.0.dist-info", "", version="2.0")  # without the entry point
    write(path.parent / "second/my_plugin-1.0.dist-info", "[omni]\na = b\n")
    assert list(entry_points("omni")) == []


def test_an_archive_on_the_path_is_read(path: Path) -> None:
    with ZipFile(path.parent / "wheel.zip", "w") as archive:
        archive.writestr("zipped-3.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 3\n")
        archive.writestr("zipped-3.dist-info/entry_points.txt", "[omni]\na = b\n")
    assert list(entry_points("omni")) == [EntryPoint("omni", "a", "b", "zipped", "3")]


def test_a_distribution_without_metadata_stops_nothing(path: Path) -> None:
    (path / "broken-1.dist-info").mkdir()
    (path / "old.egg-info").write_text("Name: old\n")  # a file, as distutils wrote it
    write(path / "my_plugin-1.2.dist-info", "[omni]\na = b\n")
    assert [each.name for each in entry_points("omni")] == ["a"]
