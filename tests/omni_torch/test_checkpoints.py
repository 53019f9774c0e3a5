"""Reading the config of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_core.errors import ConfigError
from omni_torch.checkpoints import Section, read_json


def test_missing_fields_of_a_config_are_named_by_path() -> None:
    root = Section({"text": {"heads": 4, "bias": None}, "audio": 3}, "config.json", "Parrot")
    text = root.section("text")
    assert text["heads"] == 4
    assert text.get("bias", 7) == text.get("norm", 7) == 7
    with pytest.raises(ConfigError, match=r"^config\.json\.text\.bias: missing; is this a Parrot checkpoint\?$"):
        text["bias"]
    with pytest.raises(ConfigError, match=r"^config\.json\.audio: must be an object$"):
        root.section("audio")


@pytest.mark.parametrize(("content", "words"), [("{", "cannot be read"), ("[1]", "must hold an object, holds a list")])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        read_json(path)
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"config\.json {words}"):
        read_json(path)
