"""Percentiles, throughput and goodput, with exact numbers."""

from __future__ import annotations

import pytest

from omni_core.errors import ConfigError
from omni_serve.bench.summary import Objectives, Spread, summarize
from omni_serve.bench.timeline import Timeline

FAST = Timeline("speech", 0.0, sounds=[(0.25, 1.0), (1.0, 1.0)], ended=1.0)
PAUSED = Timeline("speech", 0.0, sounds=[(0.25, 0.25), (1.0, 1.0)], ended=1.0)  # silent from 0.5 to 1
SLOW = Timeline("speech", 0.0, sounds=[(0.75, 2.0)], ended=1.5)
TEXT = Timeline("text", 0.0, texts=[0.125], ended=0.5, tokens=8)
FAILED = Timeline("speech", 0.0, ended=0.25, error="429 overloaded")


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        ("", 4),
        ("ttfa=0.5", 3),
        ("gap=0", 3),
        ("ttfa=0.5,gap=0", 2),
        ("ttfa=0.25, gap=0.5", 3),
        ("total=0.5", 1),
        ("rtf=0.5", 2),
    ],
)
def test_goodput(slo: str, good: int) -> None:
    summary = summarize("x", [FAST, PAUSED, SLOW, TEXT, FAILED], 2.0, Objectives.parse(slo))
    assert (summary.good, summary.goodput) == (good, good / 2)


def test_a_run() -> None:
    summary = summarize("x", [FAST, PAUSED, SLOW, TEXT, FAILED], 2.0, Objectives.parse(""))
    assert (summary.sent, summary.succeeded, summary.errors) == (5, 4, {"429 overloaded": 1})
    assert (summary.delayed, summary.late) == (1, 0.5)
    assert (summary.requests_per_second, summary.sound_per_second, summary.tokens_per_second) == (2.0, 2.625, 4.0)
    assert summary.spreads["ttfa"].p50 == 0.25
    assert summary.spreads["chunk_gap"].count == 2
    assert summary.spreads["chunk_gap"].mean == 0.75


def test_percentiles_interpolate() -> None:
    assert Spread.of([4.0, 0.0, 2.0, 1.0, 3.0]) == Spread(5, 2.0, 2.0, pytest.approx(3.6), pytest.approx(3.96), 4.0)
    assert Spread.of([]) is None


def test_nothing_was_measured() -> None:
    summary = summarize("x", [], 0.0, Objectives.parse("gap=0"))
    assert (summary.requests_per_second, summary.goodput, summary.spreads) == (0.0, 0.0, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttfb=1", "did you mean 'ttf[at]'"),
        ("gap=x", "gap=NUMBER"),
        ("gap", "gap=NUMBER"),
        ("gap=-1", "from 0"),
        ("gap=nan", "from 0"),
    ],
)
def test_wrong_objectives(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Objectives.parse(text)
