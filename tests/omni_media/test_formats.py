"""The table of ``docs/media.md``: each format is written here, and read by the functions that stages call."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from media_files import RATE, TONE, encoded, numbers, pictured
from PIL import Image

from omni_core.api import OmniRequest, StagePayload
from omni_media.api import frames, images, sound
from omni_media.files import problem_of
from omni_media.images import FORMATS

PAGE = Path(__file__).parents[2] / "docs/media.md"


def written(form: str, subtype: str) -> Callable[[], bytes]:
    """Return a writer of sound by libsndfile."""

    def write() -> bytes:
        file = io.BytesIO()
        soundfile.write(file, TONE, RATE, format=form, subtype=subtype)
        return file.getvalue()

    return write


SOUND: dict[str, dict[str, Callable[[], bytes]]] = {
    "WAV, RF64": {
        "PCM of 8 to 32 bits": written("WAV", "PCM_24"),
        "floats": written("RF64", "FLOAT"),
        "A-law and mu-law": written("WAV", "ALAW"),
        "ADPCM": written("WAV", "MS_ADPCM"),
        "GSM 6.10": written("WAV", "GSM610"),
    },
    "W64": {"PCM": written("W64", "PCM_16")},
    "AIFF": {"PCM": written("AIFF", "PCM_16")},
    "AU": {"PCM": written("AU", "PCM_16")},
    "CAF": {"PCM": lambda: encoded("caf", "pcm_s16le", piped=True), "ALAC": written("CAF", "ALAC_16")},
    "MP3": {"MP3": lambda: encoded("mp3", "libmp3lame", piped=True), "MP2": lambda: encoded("mp2", "mp2")},
    "FLAC": {"FLAC": lambda: encoded("flac", "flac", piped=True)},
    "Ogg": {
        "Opus": lambda: encoded("ogg", "libopus", piped=True),
        "Vorbis": written("OGG", "VORBIS"),
        "FLAC": lambda: encoded("ogg", "flac", piped=True),
    },
    "WebM, Matroska": {
        "Opus": lambda: encoded("webm", "libopus", piped=True),
        "AAC": lambda: encoded("matroska", "aac", piped=True),
        "PCM": lambda: encoded("matroska", "pcm_s16le"),
    },
    "MP4, M4A, MOV, 3GP": {
        "AAC": lambda: encoded("ipod", "aac"),
        "ALAC": lambda: encoded("mov", "alac"),
        "AMR": lambda: encoded("3gp", "libopencore_amrnb"),
    },
    "ADTS": {"AAC": lambda: encoded("adts", "aac", piped=True)},
    "AMR": {"AMR": lambda: encoded("amr", "libopencore_amrnb")},
    "AC-3": {"AC-3": lambda: encoded("ac3", "ac3"), "E-AC-3": lambda: encoded("eac3", "eac3")},
    "WavPack": {"WavPack": lambda: encoded("wv", "wavpack")},
    "TTA": {"TTA": lambda: encoded("tta", "tta")},
    "NIST SPHERE": {"PCM": written("NIST", "PCM_16")},
    "VOC, IRCAM, IFF": {
        "PCM": written("VOC", "PCM_16"),
        "mu-law": written("IRCAM", "ULAW"),
        "8SVX": written("SVX", "PCM_S8"),
    },
    "ASF": {"WMA": lambda: encoded("asf", "wmav2")},
    "FLV": {"AAC": lambda: encoded("flv", "aac", piped=True)},
    "AVI": {"PCM": lambda: encoded("avi", "pcm_s16le")},
    "MPEG-TS": {"AAC": lambda: encoded("mpegts", "aac", piped=True)},
}

STEADY = [number / 25 for number in range(50)]

VIDEOS: dict[str, dict[str, Callable[[], bytes]]] = {
    "MP4, MOV, 3GP": {
        "H.264": lambda: pictured(STEADY, form="mp4", codec="libx264", size=(64, 32)),
        "H.265": lambda: pictured(STEADY, form="mp4", codec="libx265", size=(64, 32)),
        "MPEG-4": lambda: pictured(STEADY, form="mp4", codec="mpeg4"),
        "AV1": lambda: pictured(STEADY, form="mp4", codec="libsvtav1", size=(64, 64)),
        "ProRes": lambda: pictured(STEADY, form="mov", codec="prores_ks", size=(64, 64)),
    },
    "WebM, Matroska": {
        "VP8": lambda: pictured(STEADY, form="webm", codec="libvpx", size=(64, 32)),
        "VP9": lambda: pictured(STEADY, form="webm", codec="libvpx-vp9", size=(64, 32)),
        "FFV1": lambda: pictured(STEADY),
    },
    "AVI": {
        "MPEG-4": lambda: pictured(STEADY, form="avi", codec="mpeg4"),
        "MJPEG": lambda: pictured(STEADY, form="avi", codec="mjpeg"),
    },
    "MPEG-TS": {"H.264": lambda: pictured(STEADY, form="mpegts", codec="libx264", size=(64, 32))},
    "FLV": {"H.264": lambda: pictured(STEADY, form="flv", codec="libx264", size=(64, 32))},
    "streams, IVF": {
        "H.264": lambda: pictured(STEADY, form="h264", codec="libx264", size=(64, 32)),
        "H.265": lambda: pictured(STEADY, form="hevc", codec="libx265", size=(64, 32)),
        "VP8": lambda: pictured(STEADY, form="ivf", codec="libvpx", size=(64, 32)),
    },
    "MXF": {"MPEG-2": lambda: pictured(STEADY, form="mxf", codec="mpeg2video", size=(64, 32))},
    "GIF": {"GIF": lambda: pictured(STEADY, form="gif", codec="gif")},
}


def cases(table: dict[str, dict[str, Callable[[], bytes]]]) -> list[Any]:
    return [pytest.param(each, id=f"{form}: {name}") for form, rows in table.items() for name, each in rows.items()]


@pytest.mark.parametrize("make", cases(SOUND))
def test_sound(make: Callable[[], bytes]) -> None:
    samples = sound({"data": make()}, RATE)
    assert len(samples) == pytest.approx(len(TONE), abs=RATE // 8)  # codecs pad both ends
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    assert np.argmax(spectrum) * RATE / len(samples) == pytest.approx(440, abs=2)


@pytest.mark.parametrize("make", cases(VIDEOS))
def test_videos(make: Callable[[], bytes]) -> None:
    found = frames({"data": make()}).frames
    assert [round(each) for each in np.array(numbers(found)) - [0, 13, 25, 38]] == pytest.approx([0] * 4, abs=2)


@pytest.mark.parametrize("form", [each for each in FORMATS if each != "HEIF"])
def test_pictures(form: str) -> None:
    colours = np.full((32, 48, 3), (200, 100, 50), np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).save(file, form)
    [found] = images({"data": file.getvalue()})
    assert np.abs(np.asarray(found).astype(int) - colours).max() < 12


@pytest.mark.parametrize(("kind", "table"), [("audio", SOUND), ("video", VIDEOS)])
def test_commands_take_the_files(tmp_path: Path, kind: str, table: dict[str, dict[str, Callable[[], bytes]]]) -> None:
    """They look at a file before a pipeline starts."""
    for form, rows in table.items():
        for name, make in rows.items():
            (tmp_path / "file").write_bytes(make())
            assert problem_of(tmp_path / "file", kind) is None, (form, name)


def test_the_example_of_the_page_listens(tmp_path: Path) -> None:
    [block] = re.findall(r"```python title=\"listen.py\"\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    path = tmp_path / "a.webm"
    path.write_bytes(encoded("webm", "libopus"))
    messages = [{"role": "user", "content": [{"type": "audio", "path": str(path)}]}]
    payload = StagePayload("r", OmniRequest({"messages": messages}), None)
    assert re.fullmatch(r"2\.0 s, peak 0\.[23]\d", names["loudness"](payload).text)


def test_the_page_has_the_formats_that_are_tested() -> None:
    rows = [("sound", form, ", ".join(codecs)) for form, codecs in SOUND.items()]
    rows += [("video", form, ", ".join(codecs)) for form, codecs in VIDEOS.items()]
    rows.append(("picture", ", ".join(each for each in FORMATS if each != "HEIF"), "every depth and mode"))
    rows.append(("picture", "HEIC", "with `omni-media[heif]`"))
    table = "\n".join(["| | Format | Codecs |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)])
    assert table in PAGE.read_text(), f"docs/media.md lacks this table:\n{table}"
