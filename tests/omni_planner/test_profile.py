"""Profiles are written and read without loss, merged, and refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_core.config.schema import StageConfig
from omni_core.errors import ConfigError
from omni_planner.costs import Cost
from omni_planner.profile import FEATURES, Hardware, PipelineProfile, StageProfile, Visit, counts_of


def made(seconds: float = 0.01) -> PipelineProfile:
    profile = PipelineProfile("demo", Hardware("cpu", 2), message=seconds, latency=seconds / 2, messages=10)
    profile.stages["thinker"] = StageProfile("engine", admit_after=2)
    profile.stages["thinker"].cost("text").observe({"turns": 1.0, "decodes": 3.0}, seconds)
    profile.kinds["text"] = [{"thinker": Visit(["client"], ["decode"], {"decode": 4}, 12, 4)}]
    return profile


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    made().save(tmp_path / "p.json")
    assert PipelineProfile.load(tmp_path / "p.json") == made()


def test_merging_adds_turns_and_samples() -> None:
    both = made()
    both.merge(made(0.03))
    assert both.stages["thinker"].costs["text"].turns == 2
    assert both.message == pytest.approx(0.02)
    assert (both.messages, len(both.kinds["text"])) == (20, 2)
    other = made()
    other.hardware = Hardware("another", 8)
    with pytest.raises(ConfigError, match="another"):
        both.merge(other)


def test_a_step_of_an_engine_costs_less_for_each_position_the_more_there_are() -> None:
    """Steps that were timed: the curve is within 12 % of each, and a line is not."""
    profile = StageProfile("engine")
    prompts = {1: 7.5, 14: 22.0, 28: 32.0, 42: 43.0}
    decodes = {1: 5.0, 2: 7.6, 3: 9.1, 4: 10.5}
    for positions, milliseconds in prompts.items():
        profile.observe("text", {"turns": 1.0, "prompts": positions / 14, "positions": positions}, milliseconds / 1e3)
    for count, milliseconds in decodes.items():
        profile.observe("text", {"turns": 1.0, "decodes": count}, milliseconds / 1e3)

    def errors(profile: StageProfile) -> list[float]:
        costing = profile.costing(StageConfig(name="thinker", factory="m:f"))
        costs = [
            (costing("text", counts_of("engine", turns=1, prompts=count / 14, positions=count)), milliseconds)
            for count, milliseconds in prompts.items()
        ]
        costs += [
            (costing("text", counts_of("engine", turns=1, decodes=count)), milliseconds)
            for count, milliseconds in decodes.items()
        ]
        return [abs(1e3 * seconds / milliseconds - 1) for (seconds, _), milliseconds in costs]

    assert max(errors(profile)) < 0.12
    cost = profile.costs["text"]
    line = [cost.features.index(name) for name in FEATURES["engine"]]
    gram = [[cost.gram[row][column] for column in line] for row in line]
    moment = [cost.moment[row] for row in line]
    straight = StageProfile("engine", {"text": Cost(FEATURES["engine"], cost.turns, gram, moment, cost.square)})
    assert max(errors(straight)) > 0.15


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing", "is no profile"),
        ("[]", "is no profile"),
        ('{"version": 99}', "version 99 of a profile"),
        ('{"version": 2}', "version 2 of a profile.*calibrate again: omni calibrate"),
        ('{"version": 3, "pipeline": "x"}', "is no profile"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        PipelineProfile.load(path)
    with pytest.raises(ConfigError, match=r"none\.json"):
        PipelineProfile.load(tmp_path / "none.json")


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    made().save(tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    (tmp_path / "p.json").write_text(json.dumps({**document, "more": 1}))
    with pytest.raises(ConfigError, match="more"):
        PipelineProfile.load(tmp_path / "p.json")
