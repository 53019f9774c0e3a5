"""Recordings of voices: any rate and channel count, clear limits, encoded once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
import torch
from fish_cases import SHAPES, sound
from tiers import few

from omni_core.errors import InvalidRequestError, RequestTooLargeError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_fish_s2 import reference
from omni_fish_s2.codec.weights import CodecFile
from omni_fish_s2.preprocessing import takes_long
from omni_fish_s2.reference import ReferenceLimits, VoiceEncoder
from omni_media.api import MediaSource


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("voices") / "voice.wav"
    soundfile.write(path, sound(30_000), 44_100, subtype="FLOAT")
    return path


def encoder(folder: Path, **options: Any) -> VoiceEncoder:
    return VoiceEncoder(CodecFile(folder / "codec.pth"), ReferenceLimits(max_file_mb=4), **options)


def of(**part: Any) -> MediaSource:
    return MediaSource("recording", part, "references[0]")


@pytest.mark.parametrize("shape", few(SHAPES, 2))
def test_passes_of_any_size_give_the_same_codes(
    shape: str, tiny: dict[str, Path], golden: dict[str, dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The codes also equal the reference's."""
    expected = golden[shape]["encoded"]
    for frames in (1, 3, 64):
        monkeypatch.setattr(reference, "CHUNK_FRAMES", frames)
        codes = encoder(tiny[shape]).encode(torch.from_numpy(sound(2048 * len(expected))))
        assert np.array_equal(codes.numpy(), expected), frames


def test_a_recording_longer_than_the_window_is_encoded_in_bounded_passes(
    tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = torch.from_numpy(sound(2048 * 150))
    whole = encoder(tiny["a"])
    monkeypatch.setattr(reference, "CHUNK_FRAMES", 1000)
    one = whole.encode(samples)
    monkeypatch.setattr(reference, "CHUNK_FRAMES", 11)
    many = whole.encode(samples)
    # A code with two nearly equally close entries may change with the last bit.
    assert (one == many).float().mean() > 0.99
    assert len(one) == 150


def test_an_unfinished_frame_ends_in_silence(tiny: dict[str, Path]) -> None:
    codes = encoder(tiny["a"]).encode(torch.from_numpy(sound(5000)))
    assert codes.shape == (3, 10)
    padded = np.concatenate([sound(5000), np.zeros(3 * 2048 - 5000, np.float32)])
    assert torch.equal(codes, encoder(tiny["a"]).encode(torch.from_numpy(padded)))


def test_any_rate_channel_count_and_container(tiny: dict[str, Path], voice: Path, tmp_path: Path) -> None:
    voices = encoder(tiny["a"])
    by_path = voices.codes(of(path=str(voice)))
    assert torch.equal(voices.codes(of(data=voice.read_bytes())), by_path)
    assert torch.equal(voices.codes(of(samples=sound(30_000), sample_rate=44_100)), by_path)
    stereo = np.stack([sound(30_000)] * 2, axis=1)
    soundfile.write(tmp_path / "stereo.flac", stereo, 44_100, subtype="PCM_24")
    assert (voices.codes(of(path=str(tmp_path / "stereo.flac"))) == by_path).float().mean() > 0.9
    slow = soxr.resample(sound(30_000), 44_100, 16_000)
    resampled = voices.codes(of(samples=slow, sample_rate=16_000))
    assert resampled.shape == by_path.shape


def test_a_voice_is_encoded_once(tiny: dict[str, Path], voice: Path, tmp_path: Path) -> None:
    voices = encoder(tiny["a"], kept=2)
    first = voices.codes(of(path=str(voice)))
    copy = tmp_path / "another name.wav"
    copy.write_bytes(voice.read_bytes())
    assert voices.codes(of(path=str(copy))) is first
    assert (voices.encoded, voices.found) == (1, 1)
    for rate in (22_050, 32_000):  # the same samples at another rate are another recording
        voices.codes(of(samples=sound(30_000), sample_rate=rate))
        voices.codes(of(path=str(voice)))
    assert (voices.encoded, voices.found) == (3, 3)
    voices.codes(of(samples=sound(30_000), sample_rate=22_050))
    assert voices.encoded == 4, "more than two were kept"
    voices.clear()
    voices.codes(of(samples=sound(30_000), sample_rate=22_050))
    assert voices.encoded == 5, "it was cleared"


def bad(folder: Path) -> dict[str, tuple[dict[str, Any], str]]:
    (folder / "noise.wav").write_bytes(np.random.default_rng(0).bytes(4000))
    (folder / "text.mp3").write_text("this is no sound")
    (folder / "empty.wav").write_bytes(b"")
    soundfile.write(folder / "none.wav", np.zeros(0), 16_000)
    soundfile.write(folder / "long.wav", np.zeros(8_000 * 600, np.int16), 8_000, subtype="PCM_U8")
    soundfile.write(folder / "large.wav", np.zeros(44_100 * 59), 44_100)
    whole = folder / "whole.wav"
    soundfile.write(whole, sound(20_000), 44_100)
    (folder / "cut.wav").write_bytes(whole.read_bytes()[:30])
    hole = sound(8_000)
    hole[100] = np.nan
    return {
        "noise": ({"path": str(folder / "noise.wav")}, "not an audio file, or damaged"),
        "text": ({"path": str(folder / "text.mp3")}, "not an audio file, or damaged"),
        "empty": ({"path": str(folder / "empty.wav")}, "the file is empty"),
        "no samples": ({"path": str(folder / "none.wav")}, "0 samples"),
        "ten minutes": ({"path": str(folder / "long.wav")}, "over the limit of"),
        "ten minutes of samples": (
            {"samples": np.zeros(600 * 100), "sample_rate": 100},
            "600.0 s of sound and more are over the limit of 60 s",
        ),
        "too large": ({"path": str(folder / "large.wav")}, "5 MiB are over the limit of 4 MiB"),
        "cut off": ({"path": str(folder / "cut.wav")}, "damaged"),
        "not finite": ({"samples": hole, "sample_rate": 44_100}, "the sample at 0.002 s is nan"),
        "nowhere": ({"path": str(folder / "nowhere.wav")}, "cannot be opened"),
        "nothing": ({}, "needs `path`"),
        "no rate": ({"samples": hole}, "need a `sample_rate`"),
        "no bytes": ({"data": "text"}, "must be bytes"),
        "a folder": ({"path": str(folder)}, "cannot be opened"),
        "three dimensions": ({"samples": np.zeros((2, 2, 2)), "sample_rate": 8_000}, "[n, channels]"),
    }


def test_bad_recordings_are_named(tiny: dict[str, Path], tmp_path: Path) -> None:
    voices = encoder(tiny["a"])
    for name, (part, words) in bad(tmp_path).items():
        with pytest.raises(InvalidRequestError) as caught:
            voices.codes(of(**part))
        assert words in str(caught.value), f"{name}: {caught.value}"
        assert "references[0]" in str(caught.value), name
        assert Path(str(part.get("path", ""))).name in str(caught.value), name
    assert voices.encoded == 0


def test_recordings_that_are_encoded_at_once_get_their_own_codes(tiny: dict[str, Path]) -> None:
    voices = encoder(tiny["a"])
    samples = [torch.from_numpy(sound(2048 * 70 + 100 * number)) for number in range(4)]
    expected = [voices.encode(each) for each in samples]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for one, other in zip(pool.map(voices.encode, samples), expected, strict=True):
                assert torch.equal(one, other)


def test_many_silent_channels_are_no_more_than_one(tiny: dict[str, Path], tmp_path: Path) -> None:
    """A file of a few hundred bytes may have eight channels at 600 kHz."""
    path = tmp_path / "wide.flac"
    soundfile.write(path, np.zeros((600_000, 8), np.int16), 600_000, subtype="PCM_16")
    limits = ReferenceLimits(max_request_samples=600_000)
    voices = VoiceEncoder(CodecFile(tiny["a"] / "codec.pth"), limits)
    with pytest.raises(RequestTooLargeError, match="over 600000 samples"):
        voices.codes(of(path=str(path)))
    assert len(encoder(tiny["a"]).codes(of(path=str(path)))) == -(-44_100 // 2048)


def test_a_request_with_voices_is_computed_beside_the_others() -> None:
    def long(inputs: Any) -> bool:
        return takes_long(StagePayload("r", OmniRequest(inputs), None))

    assert long({"messages": [], "references": [{"data": b""}]})
    assert not long({"messages": [], "references": []})
    assert not long({"messages": []})
    assert not long(None)
