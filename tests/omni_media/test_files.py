"""Kinds of media files by content, whatever the name."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_media.files import problem_of

PNG, JPEG, GIF = b"\x89PNG\r\n\x1a\n" + bytes(16), b"\xff\xd8\xff\xe0\x00\x10JFIF", b"GIF89a" + bytes(8)
WEBP, WAV = b"RIFF\x10\0\0\0WEBPVP8 ", b"RIFF\x10\0\0\0WAVEfmt "
MP3, FLAC, OGG = b"\xff\xfb\x90\x64" + bytes(8), b"fLaC\0\0\0\x22", b"OggS\0\x02" + bytes(8)
MP4, MKV = b"\0\0\0\x18ftypisom\0\0\2\0", b"\x1aE\xdf\xa3\x01\0\0\0"
RAW = bytes(range(256))


@pytest.mark.parametrize(
    ("name", "content", "kinds"),
    [
        ("a.png", PNG, "image"), ("a.jpg", JPEG, "image"), ("photo.png", JPEG, "image"), ("a.gif", GIF, "image video"),
        ("a.webp", WEBP, "image video"), ("a.wav", WAV, "audio"), ("a.mp3", MP3, "audio"), ("a.flac", FLAC, "audio"),
        ("a.ogg", OGG, "audio video"), ("a.mp4", MP4, "audio video"), ("a.mkv", MKV, "audio video"), ("a", PNG, "image"),
        ("unknown.pcm", RAW, "image audio video"), ("damaged.png", RAW, ""), ("note.txt", "Ünï\nhello there".encode(), ""),
        ("empty.wav", b"", ""), ("old.mp4", b"\0\0\0\x08wide\0\1\0\0mdat", "audio video"),
        ("cut.mp4", b"\0\0\0\x18stypmsdh\0\0\0\0", "audio video"), ("a.wav", b"RIFX\0\0\0\x10WAVEfmt ", "audio"),
        ("a.heic", b"\0\0\0\x18ftypheis\0\0\0\0", "image"),
        ("page.html", b"<!DOCTYPE html>", ""), ("paper.pdf", b"%PDF-1.7", ""), ("text.wav", b"hello", ""),
    ],
)  # fmt: skip
def test_kinds(tmp_path: Path, name: str, content: bytes, kinds: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert [kind for kind in ("image", "audio", "video") if problem_of(path, kind) is None] == kinds.split()


def test_what_pillow_and_soundfile_write_is_taken(tmp_path: Path) -> None:
    image, soundfile = pytest.importorskip("PIL.Image"), pytest.importorskip("soundfile")
    for suffix in ("png", "jpg", "gif", "webp", "bmp", "tiff"):
        image.new("RGB", (8, 8)).save(tmp_path / f"a.{suffix}")
        assert problem_of(tmp_path / f"a.{suffix}", "image") is None, suffix
    for suffix in ("wav", "flac", "ogg", "mp3", "aiff"):
        soundfile.write(tmp_path / f"a.{suffix}", [0.0] * 8000, 16000)
        assert problem_of(tmp_path / f"a.{suffix}", "audio") is None, suffix
