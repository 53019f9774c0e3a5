"""``--out``: what it refuses, before anything starts."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from omni_cli.request.out import check_out
from omni_cli.request.wav import WavWriter


def test_a_new_file_a_wav_file_and_an_empty_file_are_taken(tmp_path: Path) -> None:
    check_out(tmp_path / "new.wav")
    (tmp_path / "empty").touch()
    check_out(tmp_path / "empty")
    writer = WavWriter(tmp_path / "old.wav")
    writer.write([0.5], 8000)
    writer.close()
    check_out(tmp_path / "old.wav")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("picture.png", "picture.png exists and is no WAV file"),
        ("folder", "is a folder"),
        ("nowhere/x.wav", "nowhere does not exist or cannot be written"),
    ],
)
def test_what_would_be_lost_or_fail_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG, a picture")
    (tmp_path / "folder").mkdir()
    with pytest.raises(click.UsageError, match=words):
        check_out(tmp_path / name)
    with pytest.raises(click.UsageError, match="remove --no-speech"):
        check_out(tmp_path / "x.wav", no_speech=True)
