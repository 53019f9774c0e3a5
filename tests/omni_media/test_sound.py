"""Sound of every format is read whole, whatever its header says of its length, and limits count what is decoded."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from media_files import RATE, TONE, encoded, pictured

from omni_core.errors import InvalidRequestError, RequestTooLargeError
from omni_media import containers
from omni_media.api import Limits, frames, sound
from omni_serve.errors import ApiError
from omni_serve.media import check_media
from omni_serve.settings import Limits as ServerLimits


def heard(data: bytes, **limits: Any) -> np.ndarray[Any, Any]:
    return sound({"data": data}, RATE, Limits(**limits))


def wav(subtype: str = "PCM_16", samples: Any = TONE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize(
    ("form", "codec"),
    [("mp3", "libmp3lame"), ("flac", "flac"), ("ogg", "flac"), ("ogg", "libopus"), ("webm", "libopus")],
)
def test_a_file_that_was_written_to_a_pipe_is_read_whole(form: str, codec: str) -> None:
    samples = heard(encoded(form, codec, piped=True))
    assert 0 <= len(samples) - len(TONE) < RATE / 20  # MP3 is padded to whole frames
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(np.sqrt(np.mean(TONE**2)), rel=0.1)


@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0xFFFFFFFF, 2_000_000_000])
@pytest.mark.parametrize("riff", [0, 0xFFFFFFFF])
def test_the_sizes_in_a_wave_file_are_not_believed(size: int, riff: int) -> None:
    data = wav()
    claimed = data[:4] + struct.pack("<I", riff) + data[8:40] + struct.pack("<I", size) + data[44:]
    assert np.array_equal(heard(claimed), heard(data))


@pytest.mark.parametrize("subtype", ["GSM610", "IMA_ADPCM", "MS_ADPCM", "ULAW", "ALAW"])
def test_codecs_of_telephones_are_read(subtype: str) -> None:
    samples = heard(wav(subtype))
    assert len(samples) == pytest.approx(len(TONE), abs=RATE // 20)
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(np.sqrt(np.mean(TONE**2)), rel=0.1)


@pytest.mark.parametrize(
    ("subtype", "most"),
    [("PCM_U8", 0.01), ("PCM_16", 1e-4), ("PCM_24", 1e-6), ("PCM_32", 1e-7), ("FLOAT", 0), ("DOUBLE", 0)],
)
def test_samples_of_any_depth_are_those_that_were_written(subtype: str, most: float) -> None:
    assert np.abs(heard(wav(subtype)) - TONE).max() <= most


def test_channels_are_averaged_and_the_rate_is_changed() -> None:
    both = np.stack([TONE, -TONE], axis=1)
    assert np.abs(heard(wav("FLOAT", both))).max() == 0
    assert len(sound({"data": wav()}, 48_000)) == 3 * len(TONE)
    assert np.array_equal(sound({"samples": TONE, "sample_rate": RATE}, RATE), TONE)


@pytest.mark.parametrize("layout", ["mono", "stereo", "5.1", "7.1"])
@pytest.mark.parametrize("codec", ["aac", "flac", "pcm_s32le", "pcm_f64le", "pcm_u8"])
def test_any_number_of_channels_is_averaged(layout: str, codec: str) -> None:
    samples = heard(encoded("matroska", codec, layout=layout))
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(np.sqrt(np.mean(TONE**2)), rel=0.2 if codec == "aac" else 0.05)


def test_the_rest_of_a_cut_file_is_read() -> None:
    data = wav()
    assert len(heard(data[: len(data) // 2])) == pytest.approx(len(TONE) / 2, abs=50)
    assert len(heard(encoded("webm", "libopus")[:-500])) > len(TONE) // 2


def test_limits_count_what_is_decoded() -> None:
    piped = encoded("flac", "flac", piped=True)  # its header says no length
    heard(piped, max_audio_seconds=2.0)
    with pytest.raises(RequestTooLargeError, match=r"over the limit of 1.9 s \(max_audio_seconds\)"):
        heard(piped, max_audio_seconds=1.9)
    with pytest.raises(RequestTooLargeError, match="max_request_samples"):
        heard(piped, max_request_samples=RATE)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"this is no sound at all", "not an audio file"),
        (wav()[:44], "there is no sound in it"),
        (wav("FLOAT", np.full(RATE, np.nan)), "the sample at 0.000 s is nan"),
        (wav("FLOAT", np.full((RATE, 2), [np.inf, -np.inf])), "the sample at 0.000 s is inf"),
        (wav("FLOAT", np.append(TONE, -1e18)), r"the sample at 2.000 s is -1e\+18; .*from -1 to 1, .*up to 32768"),
        (wav("DOUBLE", np.append(TONE, 1e30)), r"the sample at 2.000 s is 1e\+30"),
        (wav("DOUBLE", np.full(RATE, 1e300)), "the sample at 0.000 s is inf"),
        (wav("FLOAT", np.full((RATE, 2), [1e30, -1e30])), r"the sample at 0.000 s is 1e\+30"),
    ],
)
def test_what_is_no_sound_is_named(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"the audio: .*{words}"):
        heard(data)


@pytest.mark.parametrize("value", [1e18, np.nan])
def test_given_samples_must_be_sound_too(value: float) -> None:
    with pytest.raises(InvalidRequestError, match=r"the audio: the sample at 1\.000 s is"):
        sound({"samples": np.append(TONE[:RATE], value), "sample_rate": RATE}, RATE)


def test_the_scale_of_16_bits_in_floats_is_read() -> None:
    assert np.abs(heard(wav("FLOAT", TONE / 0.3 * 32_768))).max() == 32_768


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("samples", [500, 8_000, 48_777])
@pytest.mark.parametrize("kind", ["sine", "noise"])
def test_the_last_packet_of_vorbis_takes_off_what_is_padding(rate: int, samples: int, kind: str) -> None:
    draw = np.random.default_rng(0)
    wave = (
        draw.normal(0, 0.1, samples) if kind == "noise" else 0.3 * np.sin(2 * np.pi * 440 * np.arange(samples) / rate)
    )
    file = io.BytesIO()
    soundfile.write(file, wave, rate, format="OGG", subtype="VORBIS")
    found = check_media("audio", file.getvalue(), "x", ServerLimits()).seconds
    assert found == pytest.approx(samples / rate, abs=600 / rate)  # the first packet may begin before the sound


def test_a_file_of_very_many_packets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet of few bytes costs as much as another."""
    monkeypatch.setattr(containers, "MOST_PACKETS", 20)
    with pytest.raises(RequestTooLargeError, match="too many packets"):
        heard(encoded("webm", "libopus"))
    with pytest.raises(RequestTooLargeError, match="too many packets"):
        frames({"data": pictured([number / 25 for number in range(50)])})
    with pytest.raises(ApiError, match="too many packets"):
        check_media("audio", encoded("webm", "libopus"), "x", ServerLimits())


@pytest.mark.parametrize(
    "listing", ["#EXTM3U\n#EXTINF:1,\n{file}\n#EXT-X-ENDLIST\n", "ffconcat version 1.0\nfile {file}\n"]
)
def test_a_file_that_names_others_is_refused(tmp_path: Path, listing: str) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    with pytest.raises(InvalidRequestError, match="not an audio file"):
        heard(listing.format(file=tmp_path / "a.wav").encode())
