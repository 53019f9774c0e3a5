"""Finding a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_core.checkpoints import resolve_checkpoint
from omni_core.errors import ConfigError


@pytest.mark.parametrize(
    ("model", "word"), [("/no/such/folder", "neither"), ("just-a-name", "neither"), (".", "no config.json")]
)
def test_a_model_that_is_not_there_is_named(
    model: str, word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=word):
        resolve_checkpoint(model, ["*.json"])


def test_a_folder_with_a_config_is_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_checkpoint(str(tmp_path), ["*.json"]) == str(tmp_path)
