"""The kind of a media file by its first bytes. A file of an unknown format is left to the stage that decodes it."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from pathlib import Path

_BEGINNINGS: dict[str, tuple[str, ...]] = {
    r"\x89PNG\r\n\x1a\n|\xff\xd8\xff|BM.{4}\0\0|II\*\0|MM\0\*": ("image",),
    r"GIF8[79]a|RIFF....WEBP|....ftyp(avif|avis)": ("image", "video"),
    r"....ftyp(hei[cxms]|hev[cxms]|mif1|msf1|miaf)": ("image",),
    r"(RIFF|RIFX|RF64|BW64)....WAVE|riff.{20}wave|caff|wvpk|TTA1|MAC |\x0bw|\.snd|fLaC|ID3|FORM....AIF[FC]|#!AMR": (
        "audio",
    ),
    r"\xff[\xe2\xe3\xf2\xf3\xfa\xfb]|\xff[\xf0\xf1\xf8\xf9]": ("audio",),
    r"OggS|....(ftyp|styp|moov|mdat|free|skip|wide|pnot)|\x1aE\xdf\xa3|\x30\x26\xb2\x75": ("audio", "video"),
    r"RIFF....AVI |\0\0\x01[\xb3\xba]|FLV\x01": ("audio", "video"),
    r"%PDF|PK\x03\x04|\x1f\x8b|\x7fELF|<svg|<\?xml|<!DOCTYPE|<html": (),
}
"""By the first bytes of a file: the kinds of media that it may be."""

_SUFFIXES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".wav", ".flac", ".ogg", ".mp4", ".mkv", ".webm", ".avi"}
"""Of files that begin with bytes given above, if they are what their names say."""


def problem_of(path: Path, kind: str) -> str | None:
    """Return why a file cannot be of a kind of media, or ``None``."""
    with path.open("rb") as file:
        begin = file.read(512)
    name = {"image": "image", "audio": "audio file", "video": "video"}[kind]
    if not begin:
        return f"{path} is empty"
    for pattern, kinds in _BEGINNINGS.items():
        if re.match(pattern.encode(), begin, re.DOTALL):
            if kind in kinds:
                return None
            return f"{path} is no {name}" + (f": its content is {' or '.join(kinds)}" if kinds else "")
    if path.suffix.lower() in _SUFFIXES:
        return f"{path} is no {name}: it does not begin like a {path.suffix} file"
    return f"{path} is no {name}: it is text" if _is_text(begin) else None


def _is_text(begin: bytes) -> bool:
    try:
        text = getincrementaldecoder("utf-8")().decode(begin)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return "".join(text.split()).isprintable()
