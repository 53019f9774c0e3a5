"""Reading the config of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_torch.checkpoints.folders import LARGEST_TEXT, Section, read_json, read_tokenizer, written_once


def test_missing_fields_of_a_config_are_named_by_path() -> None:
    root = Section({"text": {"heads": 4, "bias": None}, "audio": 3}, "config.json", "Parrot")
    text = root.section("text")
    assert text["heads"] == 4
    assert text.get("bias", 7) == text.get("norm", 7) == 7
    with pytest.raises(ConfigError, match=r"^config\.json\.text\.bias: missing; is this a Parrot checkpoint\?$"):
        text["bias"]
    with pytest.raises(ConfigError, match=r"^config\.json\.audio: must be an object$"):
        root.section("audio")


@pytest.mark.parametrize(("content", "words"), [("{", "cannot be read"), ("[1]", "must hold an object, holds a list")])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ConfigError, match=r"config\.json is missing; download the checkpoint again"):
        read_json(path)
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"config\.json {words}"):
        read_json(path)


@pytest.mark.parametrize("read", [read_json, lambda path: read_tokenizer(path.parent, {})])
def test_files_that_would_be_waited_for_are_refused_at_once(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "tokenizer.json"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=r"tokenizer\.json is no regular file"):
        read(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is no regular file"):
        read(path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(LARGEST_TEXT + 1)
    with pytest.raises(ConfigError, match=rf"tokenizer\.json has {LARGEST_TEXT + 1} bytes, more than"):
        read(path)


@pytest.mark.parametrize("value", [2**63, "full_attention", {"full_attention": 1}, [1], [["full_attention"]], True])
def test_a_list_of_strings_is_checked(value: object) -> None:
    with pytest.raises(ConfigError, match=r"config\.json\.kinds: must be a list of strings"):
        Section({"kinds": value}, "config.json", "Parrot").strings("kinds", ())
    assert Section({"kinds": ["a"]}, "config.json", "Parrot").strings("kinds", ()) == ("a",)
    assert Section({"kinds": None}, "config.json", "Parrot").strings("kinds", ("b",)) == ("b",)


def test_a_folder_of_the_cache_is_written_again_if_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def write(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        (folder / "other").touch()

    made = Path(written_once("made", write))
    (made / "config.json").unlink()
    assert Path(written_once("made", write)) == made
    assert (made / "config.json").is_file()
    assert [each.name for each in made.parent.iterdir()] == ["made"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"file/omni cannot be written: .*; set XDG_CACHE_HOME"):
        written_once("made", Path.touch)
