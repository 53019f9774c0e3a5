"""Profiles are written and read without loss, merged, and refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_core.config.schema import StageConfig
from omni_core.errors import ConfigError
from omni_planner.costs import Cost
from omni_planner.profile import FEATURES, CacheUse, Edge, Hardware, PipelineProfile, StageProfile, Visit, counts_of


def made(seconds: float = 0.01) -> PipelineProfile:
    profile = PipelineProfile("demo", Hardware("cpu", 2), message=seconds, latency=seconds / 2, messages=10)
    profile.stages["thinker"] = StageProfile("engine", admit_after=2)
    profile.stages["thinker"].cost("text").observe({"turns": 1.0, "decodes": 3.0}, seconds)
    profile.stages["thinker"].edges["text"] = {"decode": Edge(2, 8, 4_000)}
    profile.stages["thinker"].cache = CacheUse(100, 16, 32_768, 7)
    profile.stages["thinker"].after_first["text"], profile.drift = 0.25, 0.03
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
    assert both.stages["thinker"].edges == {"text": {"decode": Edge(4, 16, 8_000)}}
    assert both.stages["thinker"].cache == CacheUse(100, 16, 32_768, 7)
    other = made()
    other.hardware = Hardware("another", 8)
    with pytest.raises(ConfigError, match="another"):
        both.merge(other)


def test_what_turns_cost_more_while_recorded_is_weighed_by_turns() -> None:
    both, other = made(), made()
    both.stages["thinker"].recorded["text"], other.stages["thinker"].recorded["text"] = 1.0, 2.0
    for _ in range(2):
        other.stages["thinker"].observe("text", {"turns": 1.0}, 0.01)
    other.stages["thinker"].admit_after, other.stages["thinker"].frame_seconds = 1, 0.08
    both.merge(other)
    assert both.stages["thinker"].recorded["text"] == pytest.approx((1.0 + 3 * 2.0) / 4)
    assert (both.stages["thinker"].admit_after, both.stages["thinker"].frame_seconds) == (1, 0.08)


def test_the_speed_of_a_machine_varied_as_much_as_in_both_runs() -> None:
    both, other = made(), made()
    other.drift, other.messages, other.stages["thinker"].after_first["text"] = 0.09, 30, 0.75
    both.merge(other)
    assert both.drift**2 == pytest.approx((10 * 0.03**2 + 30 * 0.09**2) / 40)
    assert both.stages["thinker"].after_first == {"text": pytest.approx(0.5)}


@pytest.mark.parametrize("version", [3, 4])
def test_a_file_of_a_version_before_is_read(tmp_path: Path, version: int) -> None:
    path = tmp_path / "p.json"
    made().save(path)
    document = json.loads(path.read_text()) | {"version": version}
    for stage in document["stages"].values():
        del stage["edges"], stage["cache"], stage["after_first"]
    del document["drift"]
    path.write_text(json.dumps(document))
    read = PipelineProfile.load(path)
    assert read.stages["thinker"].cache is None
    assert (read.drift, read.stages["thinker"].after_first) == (0.0, {})
    newer = made()
    newer.merge(read)
    assert newer.drift == pytest.approx(0.03), "of those that know it"
    read.save(path)
    assert PipelineProfile.load(path) == read


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"kv_blocks": 100}),
        ({"block_size": 32}, {"kv_blocks": 50}),
        ({"kv_cache_mb": 2}, {"kv_blocks": 64}),
        ({"kv_cache_mb": 2, "block_size": 8}, {"kv_blocks": 128}),
        ({"kv_blocks": 5}, {}),
    ],
)
def test_a_simulated_cache_is_as_large_as_the_measured_one_or_as_configured(
    given: dict[str, int], expected: dict[str, int]
) -> None:
    stage = StageConfig(name="thinker", factory="m:f", factory_args=given)
    assert made().stages["thinker"].settings(stage) == expected


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
