"""``--out``: what it refuses, before anything starts."""

from __future__ import annotations

from pathlib import Path

import av
import click
import numpy as np
import pytest

from omni_cli.request.out import check_out
from omni_cli.request.sound import sound_writer
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
    ("suffix", "codec"), [(".MP3", "mp3"), (".opus", "opus"), (".ogg", "opus"), (".flac", "flac"), (".m4a", "aac")]
)
@pytest.mark.parametrize("rate", [8000, 22050, 44100])
def test_the_suffix_is_the_format(tmp_path: Path, suffix: str, codec: str, rate: int) -> None:
    path, tone = tmp_path / f"speech{suffix}", 0.5 * np.sin(np.arange(rate) * 2 * np.pi * 440 / rate)
    writer = sound_writer(path)
    for piece in np.split(tone, [1, 999, 999]):
        writer.write(piece, rate)
    writer.close()
    writer.close()
    with av.open(str(path)) as file:
        [stream] = file.streams.audio
        assert stream.codec_context.name.startswith(codec)
        found = np.concatenate([np.ravel(each.to_ndarray()) for each in file.decode(stream)]).astype(float)
        length, found = len(found) / stream.rate, found[: stream.rate]
    assert length == pytest.approx(1.0, abs=0.03 if codec == "aac" else 1e-3)
    assert np.argmax(np.abs(np.fft.rfft(found, stream.rate))) == 440
    check_out(path)
    writer = sound_writer(path)
    writer.write(tone[:0], rate)
    writer.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("picture.wav", "picture.wav exists and is no sound file"),
        ("speech.aif", r"speech.aif: speech is written as .wav, .mp3, .flac, .opus, .ogg, .m4a, images as .png, "),
        ("folder", "is a folder"),
        ("nowhere/x.wav", "nowhere does not exist or cannot be written"),
        ("/proc/x.wav", "--out /proc/x.wav: the folder /proc does not exist or cannot be written"),
        ("", "--out .* is a folder"),
    ],
)
def test_what_would_be_lost_or_fail_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "picture.wav").write_bytes(b"\x89PNG, a picture")
    (tmp_path / "folder").mkdir()
    with pytest.raises(click.UsageError, match=words):
        check_out(tmp_path / name)
    with pytest.raises(click.UsageError, match="remove --no-speech"):
        check_out(tmp_path / "x.wav", no_speech=True)


def test_a_full_disk_is_named() -> None:
    writer = WavWriter(Path("/dev/full"))
    for step in (lambda: writer.write([0.5], 8000), writer.close):
        with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
            step()
