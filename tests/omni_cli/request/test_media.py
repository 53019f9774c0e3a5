"""Files of a message before the start: the flag of a command says what is wrong with one."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from omni_cli.request.media import MediaFile, problem_of

PNG, WAV = b"\x89PNG\r\n\x1a\n" + bytes(16), b"RIFF\x10\0\0\0WAVEfmt "


def test_the_flag_says_what_is_wrong(tmp_path: Path) -> None:
    @click.command()
    @click.option("--image", type=MediaFile("image"))
    def command(image: Path) -> None:
        click.echo(repr(image))

    sound = tmp_path / "a.png"
    sound.write_bytes(WAV)
    answer = CliRunner().invoke(command, ["--image", str(sound)])
    assert answer.exit_code == 2
    assert f"Invalid value for '--image': {sound} is no image: its content is audio" in answer.stderr
    missing = CliRunner().invoke(command, ["--image", str(tmp_path / "no.png")])
    assert "does not exist" in missing.stderr
    sound.write_bytes(PNG)
    assert CliRunner().invoke(command, ["--image", str(sound)]).stdout == f"{sound!r}\n"


def test_without_omni_media_the_content_is_left_to_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(WAV)
    assert problem_of(tmp_path / "a.png", "image") is not None
    monkeypatch.setitem(sys.modules, "omni_media.files", None)
    assert problem_of(tmp_path / "a.png", "image") is None
