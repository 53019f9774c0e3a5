"""WAV files that are written in pieces: to a path, to a stream, to a pipe."""

from __future__ import annotations

import io
import os
import wave
from pathlib import Path

from omni_cli.request.wav import WavWriter


def test_a_file_has_its_length_once_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    writer = WavWriter(path)
    writer.close()
    assert not path.exists(), "nothing was said"
    writer.write([0.0, 1.0], 8000)
    with wave.open(str(path)) as unfinished:
        assert unfinished.readframes(10) == b"\x00\x00\xff\x7f", "players read what is there"
    writer.write([-2.0], 8000)
    writer.close()
    writer.close()
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth(), file.getnframes()) == (8000, 1, 2, 3)
        assert file.readframes(3)[4:] == b"\x01\x80"


def test_a_stream_stays_open_behind_the_sound() -> None:
    stream = io.BytesIO(b"")
    stream.write(b"before")
    writer = WavWriter(stream)
    writer.write([0.5] * 5, 8000)
    writer.close()
    assert stream.tell() == 6 + 44 + 10
    stream.seek(6)
    with wave.open(stream) as file:
        assert file.getnframes() == 5


def test_a_pipe_gets_a_header_without_a_length() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as end, os.fdopen(writing, "wb") as pipe:
        writer = WavWriter(pipe)
        writer.write([0.5] * 5, 8000)
        writer.close()
        assert not pipe.closed
        sound = os.read(end.fileno(), 1000)
    assert len(sound) == 54
    with wave.open(io.BytesIO(sound)) as file:
        assert len(file.readframes(100)) == 10
