"""``omni tiny-checkpoint``, and the model of a pipeline for which none is given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from omni_core.errors import ConfigError
from omni_core.plugins import load_plugins
from omni_core.references import load
from omni_testing.tiny import MODELS
from omni_testing.tiny.command import tiny_checkpoint


def test_it_writes_a_checkpoint(tmp_path: Path) -> None:
    run = CliRunner().invoke
    written = run(tiny_checkpoint, ["fish-s2", str(tmp_path / "x"), "--shape", "c", "--dtype", "bfloat16"])
    assert written.exit_code == 0, written.output
    assert "shape c, random weights (seed 0)" in written.output
    (first, *_) = sorted((tmp_path / "x").glob("*.safetensors"))
    assert {each.dtype for each in load_file(first).values()} == {torch.bfloat16}
    (tmp_path / "file").write_text("")
    for model, folder, shape, words in (
        ("fish-s2", "x", "a", "another folder"),
        ("fish-s2", "file/x", "a", "cannot be written"),
        *((each, "y", "z", "unknown shape 'z'; there are: a, b, c") for each in MODELS),
    ):
        refused = run(tiny_checkpoint, [model, str(tmp_path / folder), "--shape", shape])
        assert refused.exit_code == 1
        assert words in refused.output
        assert not isinstance(refused.exception, OSError | ValueError)


def test_a_model_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "omni_testing.tiny.fish_s2", raising=False)
    monkeypatch.delitem(sys.modules, "omni_testing.tiny.fish_s2_config", raising=False)
    monkeypatch.setitem(sys.modules, "omni_fish_s2", None)
    monkeypatch.setitem(sys.modules, "omni_fish_s2.codec.config", None)
    refused = CliRunner().invoke(tiny_checkpoint, ["fish-s2", str(tmp_path / "x")])
    assert refused.exit_code == 1
    assert "fish-s2 needs omni-fish-s2: pip install omni-fish-s2" in refused.output


@pytest.mark.parametrize("pipeline", ["fish-s2", "qwen3-omni", "qwen3-tts", "qwen25", "qwen-image"])
def test_the_default_model_is_made_once(pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    default_model = load(load_plugins().get("omni_pipelines", pipeline).default_model)  # type: ignore[attr-defined]
    path, notice = default_model()
    assert "RANDOM" in notice
    stamps = {each: each.stat().st_mtime_ns for each in Path(path).rglob("*")}
    assert len(stamps) > 3
    assert default_model()[0] == path
    assert {each: each.stat().st_mtime_ns for each in Path(path).rglob("*")} == stamps
    assert [each.name for each in (tmp_path / "omni").iterdir()] == [Path(path).name]


def test_without_omni_testing_a_model_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "omni_testing.tiny", None)
    pipeline = load_plugins().get("omni_pipelines", "qwen3-omni")
    with pytest.raises(
        ConfigError, match=r"give --model Qwen/Qwen3-Omni-30B-A3B-Instruct, or pip install omni-testing"
    ):
        load(pipeline.default_model)()  # type: ignore[attr-defined]
