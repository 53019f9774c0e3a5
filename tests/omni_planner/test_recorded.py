"""Recorded loads are read, named and replayed in their sizes, and what is wrong in them is said with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve

from omni_core.errors import ConfigError
from omni_planner.profile import CLIENT, Hardware, PipelineProfile, StageProfile, Visit
from omni_planner.recorded import Recorded, arrivals_of, read_record, resized

SPEECH = {
    "thinker": Visit([CLIENT], ["decode"], {"decode": 8, "talker": 8}, 10, 8),
    "decode": Visit(["thinker"], [CLIENT], {CLIENT: 7}),
    "talker": Visit(["thinker"], ["vocoder"], {"vocoder": 25}, 16, 26),
    "vocoder": Visit(["talker"], [CLIENT], {CLIENT: 2}),
}


def measured() -> PipelineProfile:
    made = PipelineProfile("line", Hardware("test", 2))
    kinds = {"thinker": "engine", "decode": "stream", "talker": "engine", "vocoder": "vocoder"}
    made.stages = {name: StageProfile(kind) for name, kind in kinds.items()}  # type: ignore[arg-type]
    made.stages["vocoder"].frame_seconds = 0.08
    made.kinds["speech"] = [SPEECH]
    return made


def test_lines_are_replayed_in_their_order_and_sizes(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text(
        '{"at": 7, "kind": "talk", "tokens": 16, "sound": 8.0}\n\n{"at": 5, "kind": "talk", "prompt": 100}\n'
    )
    first, second = arrivals_of(read_record(path, {"talk": "speech"}), measured(), speed=2.0)
    assert (first.seconds, second.seconds) == (0.0, 1.0)
    assert first.sample["thinker"] == evolve(SPEECH["thinker"], prompt=100)
    assert first.sample["talker"] == SPEECH["talker"]
    assert second.sample["thinker"] == Visit([CLIENT], ["decode"], {"decode": 16, "talker": 16}, 10, 16)
    assert second.sample["decode"].chunks == {CLIENT: 14}
    assert second.sample["talker"] == Visit(["thinker"], ["vocoder"], {"vocoder": 100}, 16, 101)
    assert SPEECH["talker"].outputs == 26, "the measured request is as it was"


def test_speech_grows_with_its_text_if_nothing_is_said_of_it() -> None:
    made = resized(SPEECH, measured(), Recorded(0.0, "speech", tokens=24))
    assert made["talker"].chunks == {"vocoder": 75}
    assert made["talker"].outputs == 76


def test_the_work_of_a_whole_speech_grows_with_it() -> None:
    """The talker's codes, the frames that are made of them, and the chunks of their sound; its prompt and the text stay."""
    sample = {
        "thinker": Visit([CLIENT], ["decode", "talker"], {"decode": 8, "talker": 8}, 10, 8),
        "decode": Visit(["thinker"], [CLIENT], {CLIENT: 7}),
        "talker": Visit(["thinker"], ["code2mel"], {}, 16, 200),
        "code2mel": Visit(["talker"], ["mel2wav"], {}, 400),
        "mel2wav": Visit(["code2mel"], [CLIENT], {CLIENT: 2}, 400),
    }
    profile = PipelineProfile("line", Hardware("test", 2))
    kinds = {"decode": "stream", "code2mel": "function", "mel2wav": "function"}
    profile.stages = {name: StageProfile(kinds.get(name, "engine")) for name in sample}  # type: ignore[arg-type]
    profile.stages["mel2wav"].frame_seconds = 0.01
    made = resized(sample, profile, Recorded(0.0, "speech", tokens=16, sound=12.0))
    assert (made["thinker"].outputs, made["decode"].chunks) == (16, {CLIENT: 14})
    assert (made["talker"].prompt, made["talker"].outputs) == (16, 600)
    assert made["code2mel"].prompt == made["mel2wav"].prompt == 1200
    assert made["mel2wav"].chunks == {CLIENT: 6}
    as_text = resized(sample, profile, Recorded(0.0, "speech", tokens=16))
    assert (as_text["talker"].outputs, as_text["mel2wav"].prompt) == (400, 800)
    measured_ones = {
        **sample,
        "code2mel": evolve(sample["code2mel"], prompt=0),
        "mel2wav": evolve(sample["mel2wav"], prompt=0),
    }
    profile.stages["mel2wav"].frame_seconds = 2.0
    made = resized(measured_ones, profile, Recorded(0.0, "speech", sound=12.0))
    assert made["mel2wav"] == evolve(sample["mel2wav"], prompt=0, chunks={CLIENT: 6})
    assert made["code2mel"] == measured_ones["code2mel"]
    assert made["talker"].outputs == 600


def test_a_benchmark_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    request = {"scenario": "speech", "begun": 0.5, "error": None, "sound": 4.0, "tokens": None, "ttft": 0.1}
    text = {**request, "begun": 0.25, "sound": 0.0, "tokens": 4}
    runs = [{"load": "rate 3/s", "requests": [request]}, {"load": "rate 5/s", "requests": [request, text]}]
    path.write_text(json.dumps({"url": "http://x", "runs": runs}))
    with pytest.raises(ConfigError, match=r"several runs: 1 \(rate 3/s\), 2 \(rate 5/s\); choose one by --trace-run"):
        read_record(path, {})
    with pytest.raises(ConfigError, match="no run 3; it has 2"):
        read_record(path, {}, 3)
    arrivals = arrivals_of(read_record(path, {}, 2), measured())
    assert [each.seconds for each in arrivals] == [0.0, 0.25]
    assert [each.sample["thinker"].outputs for each in arrivals] == [4, 8]
    assert arrivals[1].sample["talker"].chunks == {"vocoder": 50}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"at": 1, "kind": "speech", "sounds": 2}', "load.jsonl:2: is no recorded request: .*sounds"),
        ('{"at": 1}', "load.jsonl:2: is no recorded request: .*kind"),
        ("at 1", "load.jsonl:2: is no recorded request: "),
        ('{"at": -1, "kind": "speech"}', "load.jsonl:2: times and sizes must be numbers of at least 0"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text(f'{{"at": 0, "kind": "speech"}}\n{line}\n')
    with pytest.raises(ConfigError, match=problem):
        read_record(path, {})


def test_a_kind_that_was_not_measured_is_named(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text('{"at": 0, "kind": "spech"}\n')
    with pytest.raises(
        ConfigError, match=r"no kind of request 'spech'; did you mean 'speech'.*--trace-kind spech=KIND"
    ):
        arrivals_of(read_record(path, {}), measured())
    path.write_text("\n")
    with pytest.raises(ConfigError, match="has no request"):
        read_record(path, {})
