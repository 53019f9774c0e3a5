"""The environment of a computation, and the differences between two."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from omni_capsules.environment import describe, differences, references
from omni_core import __version__
from omni_core.protocol.specs import StageSpec


def test_an_environment_holds_versions_sources_and_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    spec = StageSpec(name="a", factory="computes:scaled", injected={"model_path": str(tmp_path)})
    found = describe([spec])
    assert found["versions"]["omni-core"] == __version__
    assert found["versions"]["python"] == sys.version.split()[0]
    assert {"omni_core", "omni_capsules", "computes"} <= found["sources"].keys()
    assert list(found["models"]) == [str(tmp_path)]
    assert differences(found, describe([spec], found)) == []
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert differences(found, describe([spec], found)) == [f"{tmp_path}: the checkpoint has other files here"]


def test_changed_sources_are_a_difference_though_the_version_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "own_stage.py"
    module.write_text("x = 1\n")
    spec = StageSpec(name="a", factory="own_stage:x")
    found = describe([spec])
    module.write_text("x = 2\n")
    assert differences(found, describe([spec], found)) == ["own_stage: its sources are not those of then"]
    module.unlink()
    assert differences(found, describe([], found)) == ["own_stage: its sources are not here"]


def test_differences_name_what_was_then_and_what_is_here() -> None:
    then = {"versions": {"torch": "1", "numpy": "2"}, "machine": {"processor": "x"}, "models": {}, "sources": {}}
    here = {"versions": {"torch": "3", "numpy": "2", "more": "1"}, "machine": {}, "models": {}, "sources": {}}
    assert differences(then, here) == ["torch: 1 then, 3 here", "processor: x then, nothing here"]


def test_the_references_of_a_stage_are_all_that_it_imports() -> None:
    spec = StageSpec(name="a", model_runner="m:r", scheduler="s:s", route_fn="f:r", project_payload={"b": "p:p"})
    assert references(spec) == ["m:r", "s:s", "f:r", "p:p"]
