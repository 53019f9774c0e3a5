"""`omni cache` lists and removes prepared weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from omni_core.errors import ConfigError
from omni_torch.checkpoints import weight_cache
from omni_torch.checkpoints.cache_command import cache
from omni_torch.checkpoints.folders import origin_of, written_once
from omni_torch.checkpoints.weight_files import write_tensors


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(weight_cache.VARIABLE, "1.5 GiB")
    (tmp_path / "omni" / "weights").mkdir(parents=True)
    for name in ("aaa", "bbb"):
        said = {
            "key": name,
            "network": "thinker",
            "checkpoint": "/models/x",
            "options": '{"dtype": "bfloat16", "quantization": "None"}',
        }
        write_tensors(weight_cache.path_of(name), {"weight": torch.zeros(1000)}, said)
    return weight_cache.folder()


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cache, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_files_are_listed_with_what_they_are_of(folder: Path) -> None:
    (folder / "ccc.safetensors").write_bytes(b"no file of this kind")
    lines = run().splitlines()
    assert any(line.startswith("aaa") and "thinker of /models/x (dtype bfloat16)" in line for line in lines)
    assert any(line.startswith("ccc") and "a damaged file" in line for line in lines)
    assert "at most 1.5 GiB" in lines[-1]
    listed = json.loads(run("--json"))
    assert {each["name"] for each in listed["weights"]} == {"aaa", "bbb", "ccc"}
    assert listed["bound"] == 3 << 29


def test_folders_made_from_files_are_listed_and_removed(folder: Path) -> None:
    def write(made: Path) -> None:
        (made / "config.json").write_text("{}")

    made = Path(written_once("gguf-tiny-1", write, origin=Path("/models/tiny.gguf")))
    other = Path(written_once("other", write))
    assert any(
        each.startswith("gguf-tiny-1") and each.endswith("made from /models/tiny.gguf") for each in run().splitlines()
    )
    assert [each["file"] for each in json.loads(run("--json"))["made"]] == ["/models/tiny.gguf"]
    assert (origin_of(made), origin_of(other)) == (Path("/models/tiny.gguf"), None)
    elsewhere = shutil.copytree(made, folder.parent.parent / "checkpoint")
    assert origin_of(elsewhere) is None, "what a checkpoint brings is not read"
    assert run("clear", "gguf").startswith("removed 1,")
    assert (made.exists(), other.exists(), len(list(folder.iterdir()))) == (False, True, 2)


def test_files_are_removed_by_name_or_all(folder: Path) -> None:
    (folder / "writing-x").write_bytes(b"of a process that was killed")
    assert run("clear", "aa") == "removed 1, 0 MiB\n"
    assert {each.name for each in folder.iterdir()} == {"bbb.safetensors", "writing-x"}
    with pytest.raises(ConfigError, match="zzz: nothing in the cache has this name"):
        run("clear", "zzz")
    run("clear")
    assert not list(folder.iterdir())
    assert "0 MiB of at most" in run()
