"""Devices, objectives and requests as they are written on the command line."""

from __future__ import annotations

import statistics

import pytest

from omni_core.errors import ConfigError
from omni_planner.devices import Fleet, Rates, assumed
from omni_planner.estimate import ask_of, of_sizes
from omni_planner.objectives import Objectives
from omni_planner.summary import Quantiles, late_seconds
from omni_torch.placement.work import Ask

GIB = 2**30


def test_devices() -> None:
    two, many = Fleet.parse("2x80GiB"), Fleet.parse("300x8xh200")
    assert (two.hosts, two.gpus, two.accelerator.name) == (1, 2, "h100")
    assert (many.hosts, many.gpus, many.accelerator.memory) == (300, 8, 141 * GIB)
    assert Fleet.parse("4x22GiB").accelerator.memory == 22 * GIB
    for wrong, problem in (("80GiB", "write it like"), ("0x80GiB", "write it like"), ("2xh10", "did you mean 'h100'")):
        with pytest.raises(ConfigError, match=problem):
            Fleet.parse(wrong)


def test_rates_that_are_assumed() -> None:
    assert assumed("step=0.002", Rates()).step == 0.002
    assert assumed("cores=8", Rates()).cores == 8
    assert assumed("spread=0", Rates()).spread == 0
    for wrong, problem in (("steps=1", "did you mean 'step'"), ("step=fast", "above 0"), ("step=0", "above 0")):
        with pytest.raises(ConfigError, match=problem):
            assumed(wrong, Rates())


def test_objectives() -> None:
    both = Objectives.parse("ttfa=0.5s, gap=0")
    assert (both.first, both.limits) == ("ttfa", {"ttfa": 0.5, "gap": 0.0})
    good, late = Quantiles(0.1, 0.4), Quantiles(0.0, 0.2)
    assert both.excess({"ttfa": good, "gap": Quantiles(0.0, 0.0)}) == 0
    assert both.excess({"ttfa": Quantiles(0.1, 1.0), "gap": late}) == pytest.approx(1.0 + 0.2)
    assert both.missed({"ttfa": good, "gap": late}) == ["gap"]
    for wrong, problem in (("tffa=1", "did you mean 'ttfa'"), ("ttfa", "number of seconds"), ("gap=-1", "at least 0")):
        with pytest.raises(ConfigError, match=problem):
            Objectives.parse(wrong)


def test_requests_of_an_estimate() -> None:
    name, ask = ask_of("call:text=50,audio=3,speech=4.5")
    assert (name, ask.text, ask.audio, ask.speech) == ("call", 50, 3.0, 4.5)
    assert ask_of("speech:speech=2")[1].audio == 5.0, "what is not said is that of the kind"
    for wrong, problem in (("a:pixel=1", "did you mean 'pixels'"), ("a:text=much", "a number")):
        with pytest.raises(ConfigError, match=problem):
            ask_of(wrong)


def test_late_seconds_are_those_in_which_nothing_is_left_to_play() -> None:
    assert late_seconds([]) == 0.0
    assert late_seconds([(1.0, 0.5), (1.2, 0.5), (1.9, 0.5)]) == 0.0
    assert late_seconds([(1.0, 0.5), (1.7, 0.5), (3.0, 0.5)]) == pytest.approx(0.2 + 0.8)


@pytest.mark.parametrize("spread", [0.1, 0.7, 1.5])
def test_sizes_of_an_estimate_are_spread_around_their_mean(spread: float) -> None:
    ask = Ask(text=3000, pixels=1_000_000, audio=5.0, reply=600, speech=12.0)
    made = of_sizes(ask, spread, "speech")
    assert made == of_sizes(ask, spread, "speech")
    for name in ("text", "pixels", "audio", "reply", "speech"):
        sizes = [getattr(each, name) for each in made]
        assert statistics.fmean(sizes) == pytest.approx(getattr(ask, name), rel=0.01)
        # 64 quantiles lack the far tail.
        assert statistics.pstdev(sizes) / statistics.fmean(sizes) == pytest.approx(spread, rel=0.25)
        assert statistics.median(sizes) < statistics.fmean(sizes)
    assert all(each.speech / each.reply == pytest.approx(12.0 / 600, rel=0.05) for each in made)
    assert statistics.correlation([each.text for each in made], [each.reply for each in made]) < 0.5


def test_sizes_that_are_nothing_stay_nothing() -> None:
    assert all(each.text == 0 and each.audio > 0 for each in of_sizes(Ask(text=0, audio=1.0), 0.7, "x"))
    assert all(each.text >= 1 and not each.speech for each in of_sizes(Ask(text=1, reply=1), 1.5, "x"))
    assert of_sizes(Ask(text=300), 0.0, "x") == [Ask(text=300)]
