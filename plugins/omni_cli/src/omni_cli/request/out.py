"""``--out``: the file that speech, an image or a video is written to; for speech, or standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

import click

STANDARD_OUTPUT = Path("-")
WAV_SUFFIXES = ("", ".wav", ".wave")
ENCODED = {
    ".mp3": ("mp3", "libmp3lame"),
    ".flac": ("flac", "flac"),
    ".opus": ("ogg", "libopus"),
    ".ogg": ("ogg", "libopus"),
    ".m4a": ("ipod", "aac"),
}
"""FFmpeg's container and codec of each other format."""
IMAGE_FORMATS = (".png", ".jpg", ".jpeg", ".webp")
VIDEO_FORMATS = (".mp4",)


def written_to(path: Path | None) -> str:
    """Return the kind of output that a file of this name holds: ``image``, ``video`` or ``audio``."""
    suffix = "" if path is None else path.suffix.lower()
    return "image" if suffix in IMAGE_FORMATS else "video" if suffix in VIDEO_FORMATS else "audio"


def check_out(path: Path, *, no_speech: bool = False) -> None:
    """Refuse a ``--out`` that speech cannot or must not be written to.

    Raises:
        click.UsageError: an unknown format, a folder that cannot be written, a terminal, or a file that holds something other than sound.
    """
    if no_speech:
        raise click.UsageError("--out writes speech; remove --no-speech")
    if path == STANDARD_OUTPUT:
        if sys.stdout.isatty():
            raise click.UsageError("--out - writes WAV data to standard output; pipe it: --out - | aplay -")
        return
    suffix = path.suffix.lower()
    if suffix not in (*WAV_SUFFIXES, *ENCODED):
        raise click.UsageError(
            f"--out {path}: speech is written as .wav, {', '.join(ENCODED)}, images as {', '.join(IMAGE_FORMATS)}, "
            f"videos as {', '.join(VIDEO_FORMATS)}"
        )
    if suffix in ENCODED and (find_spec("av") is None or find_spec("numpy") is None):
        raise click.UsageError(f"--out needs PyAV and NumPy for {suffix} files: pip install av numpy; or name it .wav")
    _check_place(path, is_sound, "sound file")


def check_image_out(path: Path) -> None:
    """Refuse a ``--out`` that an image cannot or must not be written to.

    Raises:
        click.UsageError: standard output, an unknown format, a folder that cannot be written, or a file that holds something else.
    """
    if path == STANDARD_OUTPUT:
        raise click.UsageError("--out - is for speech; name a file, such as --out image.png")
    if path.suffix.lower() not in IMAGE_FORMATS:
        raise click.UsageError(f"--out {path}: images are written as {', '.join(IMAGE_FORMATS)}")
    if find_spec("PIL") is None:
        raise click.UsageError("--out needs Pillow for images: pip install pillow")
    _check_place(path, is_image, "image")


def check_video_out(path: Path) -> None:
    """Refuse a ``--out`` that a video cannot or must not be written to.

    Raises:
        click.UsageError: another format, a folder that cannot be written, or a file that holds something else.
    """
    if path.suffix.lower() not in VIDEO_FORMATS:
        raise click.UsageError(f"--out {path}: videos are written as {', '.join(VIDEO_FORMATS)}")
    if find_spec("av") is None or find_spec("numpy") is None:
        raise click.UsageError("--out needs PyAV and NumPy for videos: pip install av numpy")
    _check_place(path, is_mp4, "MP4 file")


def _check_place(path: Path, fits: Callable[[Path], bool], what: str) -> None:
    check_folder("--out", path)
    if path.is_dir():
        raise click.UsageError(f"--out {path} is a folder; name a file in it")
    if path.is_file() and not fits(path):
        raise click.UsageError(f"--out {path} exists and is no {what}; choose another name or delete it first")


def check_folder(option: str, path: Path) -> None:
    """Raise ``click.UsageError`` if no file can be made at ``path``."""
    folder = path.absolute().parent
    try:
        with TemporaryFile(dir=folder):  # in /proc, no file can be made, though its permissions allow it
            return
    except OSError:
        raise click.UsageError(f"{option} {path}: the folder {folder} does not exist or cannot be written") from None


def is_sound(path: Path) -> bool:
    """Return whether the file is empty or begins as a sound file of a known format does."""
    with path.open("rb") as file:
        head = file.read(12)
    starts = (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xe3", b"fLaC", b"OggS")
    return (
        not head or head.startswith(starts) or head[4:] == b"ftypM4A " or (head[:4] == b"RIFF" and head[8:] == b"WAVE")
    )


def is_image(path: Path) -> bool:
    """Return whether the file is empty or begins as an image of a known format does."""
    with path.open("rb") as file:
        head = file.read(12)
    return not head or head.startswith((b"\x89PNG", b"\xff\xd8\xff")) or (head[:4] == b"RIFF" and head[8:] == b"WEBP")


def is_mp4(path: Path) -> bool:
    """Return whether the file is empty or begins as an MP4 file does."""
    with path.open("rb") as file:
        head = file.read(8)
    return not head or head[4:] == b"ftyp"
