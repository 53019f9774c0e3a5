"""Paths as terminals and people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_cli.chat.paths import dropped_files, kind_of, read_path, read_paths


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "my red.png"
    path.write_bytes(b"")
    (tmp_path / "b.wav").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    return path


def test_paths_quoted_escaped_and_as_they_are(picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    escaped, sound = str(picture).replace(" ", "\\ "), str(picture.with_name("b.wav"))
    for text in (f"{picture}", f"'{picture}'", f'"{picture}"', escaped, picture.as_uri(), f"  '{picture}' "):
        assert read_paths(text) == [picture]
    assert read_paths(f"'{picture}' {sound}") == [picture, Path(sound)]
    assert read_paths("") == []
    monkeypatch.setenv("HOME", str(picture.parent))
    assert read_paths("~/my red.png") == [picture]
    with pytest.raises(ValueError, match="closing"):
        read_paths("'my red.png")


def test_the_path_of_a_new_file() -> None:
    assert read_path(" my chat.md ") == read_path("'my chat.md'") == read_path("my\\ chat.md") == Path("my chat.md")
    assert read_path("") is None
    assert read_path("'a' 'b'") is None


def test_a_line_of_dropped_files_is_no_message(picture: Path) -> None:
    sound, text = picture.with_name("b.wav"), picture.with_name("notes.txt")
    assert dropped_files(f"'{picture}' ") == [("image", picture)]
    assert dropped_files(f"{picture.as_uri()} {sound}") == [("image", picture), ("audio", sound)]
    for line in (f"'{picture}' what is it?", f"{text}", "/image", "/nowhere/x.png", "hello", "don't", "'tis so", ""):
        assert dropped_files(line) == []


def test_kinds_by_name() -> None:
    names = {"a.PNG": "image", "a.mp3": "audio", "a.mp4": "video", "a.txt": None, "a": None}
    assert {name: kind_of(Path(name)) for name in names} == names
