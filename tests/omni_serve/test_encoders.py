"""Encoders whose state goes on: a stream's sound is that of the whole, and nothing is lost at borders or at the end."""

from __future__ import annotations

import io
from typing import Any

import av
import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from omni_media.api import sound as heard
from omni_serve.encoders import FORMATS, check_rate, encoder, pcm16, wav_header, whole
from omni_serve.errors import ApiError
from omni_serve.g711 import to_law

RATE = 24_000
SOUND = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)


def decoded(data: bytes) -> tuple[np.ndarray[Any, Any], int]:
    with av.open(io.BytesIO(data)) as file:
        rate = file.streams.audio[0].rate
        resampler = av.AudioResampler("flt", "mono", rate)
        frames = [each for frame in file.decode(audio=0) for each in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]), rate


def streamed(
    name: str,
    sizes: list[int],
    sound: np.ndarray[Any, Any] = SOUND,
    rate: int = RATE,
    speed: float = 1.0,
    target: int | None = None,
) -> bytes:
    made, data, at = encoder(name, rate, live=True, speed=speed, target=target), b"", 0
    for size in [*sizes, len(sound)]:
        data += made.write(sound[at : at + size])
        at += size
    return data + made.finish()


@pytest.mark.parametrize("name", FORMATS)
def test_the_borders_of_pieces_do_not_matter(name: str) -> None:
    several, one = streamed(name, [7, 1, 0, 4000, 333]), streamed(name, [])
    if name == "opus":  # pages of an Ogg stream have a random number and end where pieces do
        assert np.array_equal(decoded(several)[0], decoded(one)[0])
    else:
        assert several == one


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_lossless_formats_lose_nothing(name: str) -> None:
    for data in (streamed(name, [100, 5000]), whole(name, [SOUND[:100], SOUND[100:]], RATE)):
        samples, rate = decoded(data)
        assert rate == RATE
        assert np.array_equal((samples * 32768).round(), np.frombuffer(pcm16(SOUND), "<i2"))


@pytest.mark.parametrize("name", ["mp3", "opus", "aac"])
@pytest.mark.parametrize("rate", [24_000, 44_100])
def test_lossy_formats_sound_alike_and_are_complete(name: str, rate: int) -> None:
    sound = (0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).astype(np.float32)
    samples, out = decoded(streamed(name, [1000] * 20, sound, rate))
    assert len(samples) / out == pytest.approx(1.0, abs=0.08)
    middle = samples[out // 4 : 3 * out // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * out / len(middle) == pytest.approx(440, abs=3)
    # No clicks: what is not the tone is quiet everywhere.
    tone = np.argmax(spectrum)
    assert np.delete(spectrum, range(tone - 30, tone + 30)).max() < spectrum.max() * 0.01


def test_pcm_is_at_24_khz_whatever_the_pipeline_has() -> None:
    sound = np.zeros(44_100, np.float32)
    assert len(streamed("pcm", [10_000], sound, 44_100)) == 2 * 24_000


@given(
    st.lists(st.integers(0, 5000), max_size=8),
    st.sampled_from([16_000, 22_050, 24_000, 44_100]),
    st.integers(8_000, 48_000),
    st.integers(0, RATE),
)
def test_any_rate_is_that_of_the_whole_resampled(sizes: list[int], rate: int, target: int, count: int) -> None:
    sound = np.random.default_rng(count).normal(0, 0.1, count).astype(np.float32)
    expected = soxr.resample(sound, rate, target) if count else sound
    found = np.frombuffer(streamed("pcm", sizes, sound, rate, target=target), "<i2")
    assert len(found) == len(expected)
    assert abs(len(found) - count * target / rate) <= 0.5
    assert np.abs(found - np.frombuffer(pcm16(expected), "<i2").astype(int)).max(initial=0) <= 1
    wav = streamed("wav", sizes, sound, rate, target=target)
    assert wav == wav_header(target, None) + found.tobytes()
    law = streamed("pcmu", sizes, sound, rate, target=target)
    assert law == to_law(found, "pcmu")


@pytest.mark.parametrize("target", [8_000, 11_025, 16_000, 44_100, 48_000])
def test_another_rate_leaves_pitch_and_loudness_alone(target: int) -> None:
    found = np.frombuffer(streamed("pcm", [777] * 20, target=target), "<i2") / 32768
    middle = found[target // 10 : -target // 10]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=1e-3)
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    tone = np.argmax(spectrum)
    assert tone * target / len(middle) == pytest.approx(440, abs=2)
    assert np.delete(spectrum, range(tone - 9, tone + 10)).max() < spectrum.max() * 2e-4, "a click"


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac", "wav"])
def test_a_file_says_its_rate(name: str) -> None:
    samples, rate = decoded(streamed(name, [1000] * 20, target=16_000))
    assert rate == (48_000 if name == "opus" else 16_000)  # decoders of Opus give 48 kHz
    assert len(samples) / rate == pytest.approx(1, abs=0.1)
    spectrum = np.abs(np.fft.rfft(samples))
    assert np.argmax(spectrum) * rate / len(samples) == pytest.approx(440, abs=3)


def test_a_rate_that_a_codec_has_not_is_refused_with_those_that_it_has() -> None:
    for name in ("pcm", "wav", "flac", "pcmu"):
        check_rate(name, 12_345, "sample_rate")
    check_rate("opus", 24_000, "sample_rate")
    check_rate("mp3", None, "sample_rate")
    with pytest.raises(
        ApiError, match=r"opus has no 44,100 Hz; it has 8,000, 12,000, 16,000, 24,000, 48,000"
    ) as raised:
        check_rate("opus", 44_100, "audio.sample_rate")
    assert raised.value.param == "audio.sample_rate"


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.5, 4.0])
def test_speed_changes_the_length_and_not_the_pitch(speed: float) -> None:
    samples, rate = decoded(streamed("wav", [1000] * 20, speed=speed))
    assert len(samples) / rate == pytest.approx(1 / speed, rel=0.05)
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    assert np.argmax(spectrum) * rate / len(samples) == pytest.approx(440, abs=12)


@pytest.mark.parametrize("speed", [0.25, 0.3, 0.5, 0.7, 1.5, 4.0])
def test_speed_loses_nothing_at_the_end(speed: float) -> None:
    """The last tenth of a second is another tone."""
    sound = SOUND.copy()
    sound[-RATE // 10 :] = 0.5 * np.sin(2 * np.pi * 1500 * np.arange(RATE // 10) / RATE)
    samples, _ = decoded(streamed("wav", [1000] * 20, sound, speed=speed))
    assert len(samples) == round(len(sound) / speed)
    end = samples[-int(RATE / 10 / speed * 0.6) :]
    spectrum = np.abs(np.fft.rfft(end * np.hanning(len(end))))
    assert np.argmax(spectrum) * RATE / len(end) == pytest.approx(1500, abs=60)
    last = samples[-RATE // 100 :]
    assert np.sqrt(np.mean(last**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.25)


@pytest.mark.parametrize("name", ["mp3", "opus", "aac"])
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("rate", [22_050, 24_000, 44_100])
def test_the_last_milliseconds_are_in_the_file(name: str, live: bool, rate: int) -> None:
    sound = np.random.default_rng(0).normal(0, 0.1, rate // 2 + 137).astype(np.float32)
    sound = np.convolve(sound, np.hanning(9) / 4, "same").astype(np.float32)
    made = encoder(name, rate, live=live)
    samples = heard({"data": made.write(sound) + made.finish()}, rate)
    begin = int(np.argmax(np.correlate(samples[:6000], sound[500:2500], "valid"))) - 500
    end, found = sound[-rate // 50 :], samples[begin : begin + len(sound)][-rate // 50 :]
    assert np.dot(end, found) / np.dot(end, end) > 0.9


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac"])
@pytest.mark.parametrize("rate", [22_050, 24_000, 44_100, 192_000])
@pytest.mark.parametrize("count", [0, 1, 17])
def test_a_file_of_few_samples_can_be_decoded(name: str, rate: int, count: int) -> None:
    most = rate // 48_000  # samples that one of the file is
    assert len(heard({"data": streamed(name, [], np.zeros(count, np.float32), rate)}, rate)) > count - max(most, 1)


@pytest.mark.parametrize("name", FORMATS)
def test_silence_of_no_samples_is_a_valid_file(name: str) -> None:
    data = encoder(name, RATE, live=True).finish()
    if FORMATS[name].usual:
        assert data == b""
    else:
        with av.open(io.BytesIO(data)) as file:
            assert file.streams.audio


def test_a_stream_s_header_says_that_its_length_is_unknown() -> None:
    assert streamed("wav", [])[:44] == wav_header(RATE, None)
    assert wav_header(RATE, None)[40:] == b"\xff\xff\xff\xff"
    assert whole("wav", [SOUND], RATE)[:44] == wav_header(RATE, 2 * len(SOUND))


def test_loud_sound_is_clipped_not_wrapped() -> None:
    assert pcm16(np.array([2.0, -2.0], np.float32)) == np.array([32767, -32767], "<i2").tobytes()


@given(st.lists(st.integers(0, 5000), max_size=8), st.sampled_from(["pcm", "wav", "flac"]))
def test_any_pieces(sizes: list[int], name: str) -> None:
    assert streamed(name, sizes) == streamed(name, [])
