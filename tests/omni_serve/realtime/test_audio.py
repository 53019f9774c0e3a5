"""Sound on the wire: formats, rates, and borders of pieces that cannot be heard."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from omni_serve.encoders import Samples, pcm16
from omni_serve.errors import ApiError
from omni_serve.realtime.audio import (
    InputAudio,
    Wire,
    from_base64,
    from_wav,
    output_audio,
    wav,
)
from omni_serve.realtime.buffer import InputBuffer


def tone(seconds: float, rate: int) -> Samples:
    return (0.4 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def test_pieces_equal_the_whole() -> None:
    data = pcm16(tone(0.5, 24_000))
    whole = InputAudio(Wire())
    expected = np.concatenate([whole.write(data), whole.flush()])
    pieces = InputAudio(Wire())
    found = [pieces.write(data[start : start + 777]) for start in range(0, len(data), 777)]  # odd: half samples
    assert np.allclose(np.concatenate([*found, pieces.flush()]), expected, atol=1e-5)
    assert len(expected) == 8000
    assert np.abs(expected[200:-200] - tone(0.5, 16_000)[200:-200]).max() < 0.01


@pytest.mark.parametrize("wire", [Wire(), Wire(rate=16_000), Wire("audio/pcmu", 8000), Wire("audio/pcma", 8000)])
def test_speech_keeps_its_length(wire: Wire) -> None:
    samples = tone(0.5, 22_050)
    out = output_audio(wire, 22_050)
    data = b"".join(
        [*(out.write(samples[start : start + 1000]) for start in range(0, len(samples), 1000)), out.finish()]
    )
    assert wire.milliseconds(len(data)) == pytest.approx(500, abs=1)
    fast = output_audio(wire, 22_050, 1.25)
    assert wire.milliseconds(len(fast.write(samples) + fast.finish())) == pytest.approx(400, abs=40)


def test_a_recording_comes_back_as_it_was_sent() -> None:
    data = from_wav(wav(tone(0.5, 16_000)), Wire())
    back = np.frombuffer(data, "<i2").astype(np.float32) / 32768
    assert np.allclose(back[300:-300], soxr.resample(tone(0.5, 16_000), 16_000, 24_000)[300:-300], atol=2e-3)


def test_what_is_no_base64() -> None:
    with pytest.raises(ApiError, match="base64"):
        from_base64("a!", "audio")


def test_the_buffer_gives_samples_by_their_position() -> None:
    buffer = InputBuffer()
    for start in range(0, 100, 10):
        buffer.add(np.arange(start, start + 10, dtype=np.float32))
    buffer.drop(15)
    assert buffer.take(33).tolist() == list(range(15, 33))
    assert buffer.take(20).tolist() == []
    assert buffer.take().tolist() == list(range(33, 100))
    assert (buffer.start, buffer.end, len(buffer)) == (100, 100, 0)
