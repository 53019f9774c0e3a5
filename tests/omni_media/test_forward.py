"""Sound that is decoded while its file comes equals that of the whole file, within the same limits."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from media_files import RATE, TONE, _add_sound, encoded, pictured

from omni_core.errors import InvalidRequestError, RequestTooLargeError
from omni_media.api import Limits, forward_sound, reads_forward, sound, sound_pieces


class Coming:
    """A file that comes in pieces. ``read``: how much of it has been read."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes = data, sizes
        self.at = self._count = 0

    def read(self, size: int) -> bytes:
        self._count += 1
        size = min(size, self._sizes[self._count % len(self._sizes)])
        piece = self._data[self.at : self.at + size]
        self.at += len(piece)
        return piece


def heard(data: bytes, *sizes: int, **limits: Any) -> tuple[np.ndarray[Any, Any], int]:
    pieces = list(forward_sound(Coming(data, [*sizes] or [1000]), Limits(**limits)))
    assert len({rate for _, rate in pieces}) == 1
    return np.concatenate([samples for samples, _ in pieces]), pieces[0][1]


def wav(samples: Any = TONE, subtype: str = "PCM_16") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype=subtype)
    return file.getvalue()


def mp4(folder: Path, flags: str) -> bytes:
    with av.open(str(folder / "a.mp4"), "w", options={"movflags": flags}) as container:
        _add_sound(container, container.add_stream("aac", rate=RATE, layout="mono"), TONE, 0)
    return (folder / "a.mp4").read_bytes()


def adts(rate: int) -> bytes:
    """Return as many samples as :data:`TONE` has, at a rate."""
    file = io.BytesIO()
    with av.open(file, "w", format="adts") as container:
        stream = container.add_stream("aac", rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(TONE[None], format="fltp", layout="mono")
        frame.sample_rate = rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize(
    ("form", "codec"),
    [
        ("wav", "pcm_s16le"),
        ("wav", "pcm_f32le"),
        ("flac", "flac"),
        ("mp3", "libmp3lame"),
        ("ogg", "libopus"),
        ("ogg", "flac"),
        ("webm", "libopus"),
        ("matroska", "aac"),
        ("adts", "aac"),
        ("amr", "libopencore_amrnb"),
    ],
)
def test_it_equals_the_sound_of_the_whole_file(form: str, codec: str, piped: bool) -> None:
    data = encoded(form, codec, piped=piped)
    assert reads_forward(data[:12]) is True
    samples, rate = heard(data, 700)
    whole = sound({"data": data}, rate)
    if codec == "libmp3lame":  # the padding at the end is known in a whole file only
        assert 0 <= len(samples) - len(whole) < 1152
        samples = samples[: len(whole)]
    assert np.array_equal(samples, whole)


@pytest.mark.parametrize(("form", "codec"), [("mp4", "aac"), ("mp3", "libmp3lame"), ("wav", "pcm_s16le")])
def test_a_whole_file_is_decoded_in_pieces(form: str, codec: str) -> None:
    data = encoded(form, codec)
    pieces = list(sound_pieces(io.BytesIO(data)))
    assert len(pieces) > 1
    assert np.array_equal(np.concatenate([each for each, _ in pieces]), sound({"data": data}, pieces[0][1]))
    with pytest.raises(RequestTooLargeError, match=r"file \(audio\): .* over the limit of 0.1 s"):
        list(sound_pieces(io.BytesIO(data), Limits(max_audio_seconds=0.1), "file"))
    with pytest.raises(InvalidRequestError, match="not an audio file"):
        list(sound_pieces(io.BytesIO(b"no sound at all, but words")))


OPUS = encoded("ogg", "libopus"), sound({"data": encoded("ogg", "libopus")}, 48_000)
FILES = encoded("ogg", "libopus"), encoded("matroska", "aac"), encoded("flac", "flac")


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_however_it_comes(sizes: list[int]) -> None:
    data, whole = OPUS
    assert np.array_equal(heard(data, *sizes)[0], whole)


def test_mp4_with_its_index_first(tmp_path: Path) -> None:
    for flags in ("faststart", "frag_keyframe+empty_moov"):
        data = mp4(tmp_path, flags)
        assert reads_forward(data[:64]) is True
        samples, rate = heard(data)
        assert np.array_equal(samples, sound({"data": data}, rate))
    assert reads_forward(encoded("mp4", "aac")[:64]) is False


@pytest.mark.parametrize(
    ("begin", "reads"),
    [
        (b"", None),
        (b"RIFF", None),
        (b"\0\0\0\x10ftypM4A ", None),
        (b"\0\0\0\x10ftypM4A \0\0\0\0\0\0\0\x08free", None),
        (b"\0\0\0\x10ftypM4A \0\0\0\0\0\1\0\0free", False),
        (b"\0\0\0\0ftypM4A \0\0\0\0", False),
        (b"\0\0\0\x10ftypM4A \0\0\0\0\0\0\0\x08mdat", False),
        (b"\0\0\0\x10ftypM4A \0\0\0\0\0\0\0\x08freexxxxmoov", True),
        (b"FORM....AIFF", False),
        (b"this is no sound", False),
    ],
)
def test_a_format_is_known_by_its_first_bytes(begin: bytes, reads: bool | None) -> None:
    assert reads_forward(begin) is reads


def test_sound_comes_before_the_file_has_ended() -> None:
    long = np.tile(TONE, 10)
    for data in (wav(long), wav(long, "FLOAT"), encoded("webm", "libopus"), encoded("adts", "aac")):
        coming = Coming(data, [512])
        pieces = forward_sound(coming)
        next(pieces)
        assert coming.at < max(70_000 if data[20:21] == b"\1" else 0, 6_000)
        pieces.close()


def test_the_sound_of_a_video() -> None:
    data = pictured([0, 0.5, 1, 1.5], form="matroska", sound=TONE)
    samples, rate = heard(data)
    assert np.array_equal(samples, sound({"data": data}, rate))


def test_limits_count_what_is_decoded() -> None:
    data = encoded("flac", "flac", piped=True)
    assert len(heard(data, max_audio_seconds=2.0)[0]) == len(TONE)
    for problem, limits in (
        (r"over the limit of 1.9 s \(max_audio_seconds\)", {"max_audio_seconds": 1.9}),
        ("max_request_samples", {"max_request_samples": RATE}),
        (r"more than 0 MiB, the limit \(max_file_mb\)", {"max_file_mb": 0}),
    ):
        with pytest.raises(RequestTooLargeError, match=problem):
            heard(data, **limits)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not an audio file"),
        (b"RIFF....WAVEthis is no sound at all", "not an audio file"),
        (b"OggS" + bytes(5000), "not an audio file"),
        (wav()[:44], "there is no sound in it"),
        (wav(np.full(RATE, np.nan), "FLOAT"), "the sample at 0.000 s is nan"),
        (wav(np.append(TONE, -1e18), "FLOAT"), r"the sample at 2.000 s is -1e\+18"),
        (pictured([0, 0.5, 1], form="matroska"), "there is no sound in it"),
    ],
)
def test_what_is_no_sound_is_named(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"file .audio.: .*{words}"):
        list(forward_sound(Coming(data, [1000]), where="file"))


def test_another_rate_in_the_middle_is_brought_to_the_first() -> None:
    """Recordings of two rates, one after the other."""
    data = adts(RATE) + adts(2 * RATE) + adts(RATE)
    samples, rate = heard(data)
    whole = sound({"data": data}, RATE)
    assert rate == RATE
    assert len(samples) == pytest.approx(len(whole), abs=2)
    assert len(samples) > 2.4 * len(TONE)
    middle = slice(len(TONE), len(TONE) + 1000)
    assert np.abs(samples[middle] - whole[middle]).max() < 1e-3


@given(st.binary(max_size=300), st.integers(0, 3000))
def test_damage_is_an_error_or_less_sound(noise: bytes, at: int) -> None:
    for data in FILES:
        damaged = data[:at] + noise + data[at + len(noise) :]
        with contextlib.suppress(InvalidRequestError):
            list(forward_sound(Coming(damaged, [800])))
