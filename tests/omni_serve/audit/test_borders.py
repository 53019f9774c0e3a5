"""Clicks are found where pieces meet, and not where sound is merely loud, sudden or noisy."""

from __future__ import annotations

import numpy as np
import pytest

from omni_serve.audit.borders import clicks

TIME = np.arange(24_000) / 24_000
TONE = (0.4 * np.sin(2 * np.pi * 220 * TIME)).astype(np.float32)


def cut(sound: np.ndarray, *where: int) -> list[np.ndarray]:
    return np.split(sound, list(where))


def test_a_tone_cut_anywhere_has_none() -> None:
    assert clicks(cut(TONE, 1, 777, 778, 9000, 23_999)) == []


def test_a_restarted_phase_clicks() -> None:
    restarted = np.concatenate([TONE[:5030], TONE[:5000]])
    (found,) = clicks(cut(restarted, 2000, 5030, 8000))
    assert found.position == 5030
    assert found.jump == pytest.approx(abs(TONE[5029]), abs=0.05)
    assert found.usual < 0.01


def test_missing_samples_click() -> None:
    assert [each.position for each in clicks(cut(np.delete(TONE, slice(5000, 5040)), 5000, 9000))] == [5000]


def test_noise_and_a_sudden_beginning_do_not() -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 24_000).astype(np.float32)
    assert clicks(cut(noise, 4800, 9600, 14_400)) == []
    assert clicks(cut(np.concatenate([np.zeros(4800, np.float32), noise]), 4800)) == []


def test_one_piece_has_no_border() -> None:
    assert clicks([TONE]) == []
    assert clicks([np.zeros(0, np.float32), TONE]) == []
