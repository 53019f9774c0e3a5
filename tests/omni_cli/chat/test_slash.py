"""Completion within a chat: commands, voices, files of the right kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from omni_cli.chat.slash import NAMES, SlashCompleter, help_lines, split


def completed(text: str) -> list[str]:
    """The lines that completion would make."""
    completer = SlashCompleter(lambda: ["Ethan", "Chelsie"])
    found = completer.get_completions(Document(text), CompleteEvent())
    return [text[: len(text) + each.start_position] + each.text for each in found]


def test_commands_and_voices() -> None:
    assert completed("/re") == ["/retry", "/reset"]
    assert completed("/voice ") == ["/voice Ethan", "/voice Chelsie"]
    assert completed("/voice che") == ["/voice Chelsie"]
    assert completed("hello /re") == []
    assert completed("/system /re") == []


def test_files_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("my red.png", "b.wav", "c.txt"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert completed("/image ") == ["/image folder", "/image my red.png"]
    assert completed(f"/audio {tmp_path}/b") == [f"/audio {tmp_path}/b.wav"]
    assert completed('/image "my') == ['/image "my red.png']
    assert completed("/save c") == ["/save c.txt"]


def test_help_has_every_command() -> None:
    words = [split(line)[0] for line in help_lines()]
    assert max(map(len, help_lines())) <= 80
    assert [word for word in words if word.startswith("/")] == [*NAMES]
    assert split("  /system  be kind ") == ("/system", "be kind")
