"""Profiles are written and read without loss, merged, and refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_core.errors import ConfigError
from omni_planner.profile import Hardware, PipelineProfile, StageProfile, Visit


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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing", "is no profile"),
        ("[]", "is no profile"),
        ('{"version": 99}', "version 99 of a profile"),
        ('{"version": 2, "pipeline": "x"}', "is no profile"),
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
