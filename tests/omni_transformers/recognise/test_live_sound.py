"""Sound that comes in chunks is resampled as the whole, and refused by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.api import AudioChunk, InvalidRequestError, RequestTooLargeError
from omni_media.api import sound
from omni_transformers.recognise.live_sound import LiveSound


def _noise(count: int) -> Any:
    return np.random.default_rng(count).standard_normal(count).astype(np.float32) / 3


@settings(max_examples=40, deadline=None)
@given(
    rate=st.sampled_from([8_000, 11_025, 16_000, 44_100, 48_000]),
    cuts=st.lists(st.integers(0, 12_000), max_size=12),
    count=st.integers(1, 12_000),
)
def test_every_cut_gives_the_samples_of_the_whole(rate: int, cuts: list[int], count: int) -> None:
    samples, live = _noise(count), LiveSound(16_000)
    pieces = np.split(samples, sorted(min(each, count) for each in cuts))
    made = [*(live.add(AudioChunk(each, rate)) for each in pieces), live.finish()]
    whole = sound({"samples": samples, "sample_rate": rate}, 16_000)
    np.testing.assert_array_equal(np.concatenate(made), whole)
    assert live.heard == len(whole)


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        ("text", "send AudioChunk, not str"),
        (AudioChunk(np.zeros((4, 2), np.float32), 16_000), r"one channel, are float32 \[4, 2\]"),
        (AudioChunk(np.zeros(4, np.int16), 16_000), "must be float"),
        (AudioChunk(np.zeros(4, np.float32), 1), "must be from 2000 to 384000 Hz, is 1"),
        (AudioChunk(np.zeros(4, np.float32), True), "is True"),
        (AudioChunk(np.zeros(4, np.float32), 16_000), "16000 Hz after 8000 Hz"),
        (AudioChunk(np.array([0, np.nan], np.float32), 8_000), "the sample at 0.501 s is nan"),
        (AudioChunk(np.array([1e30, 0]), 8_000), "the sample at 0.501 s is 1e"),
    ],
)
def test_a_bad_chunk_is_refused(chunk: Any, message: str) -> None:
    live = LiveSound(16_000)
    live.add(AudioChunk(np.zeros(4_007, np.float32), 8_000))
    with pytest.raises(InvalidRequestError, match=message):
        live.add(chunk)


def test_it_ends_where_the_limit_is() -> None:
    live = LiveSound(16_000, seconds=1.0)
    live.add(AudioChunk(np.zeros(8_000, np.float32), 8_000))
    with pytest.raises(RequestTooLargeError, match=r"longer than 1 s \(max_audio_seconds\)"):
        live.add(AudioChunk(np.zeros(1, np.float32), 8_000))


def test_no_sound_is_an_error() -> None:
    live = LiveSound(16_000)
    live.add(AudioChunk(np.zeros(0, np.float32), 8_000))
    with pytest.raises(InvalidRequestError, match="no sound in it"):
        live.finish()
