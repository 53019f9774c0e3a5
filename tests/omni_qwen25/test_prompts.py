"""The tokenizer of a checkpoint is data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from omni_core.errors import ConfigError, InvalidRequestError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_qwen3.tokenizer import load_older_chat
from omni_qwen25.preprocessing import LIMITS, Preprocessor


def test_code_beside_the_tokenizer_is_neither_run_nor_asked_for(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(tiny["a"], tmp_path / "checkpoint")
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Own: ...\n")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(
        '{"model_type": "own"}'
    )  # no model of transformers, whose own class would be taken
    questions: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *text: questions.append(text) or "y")
    with pytest.raises(ConfigError, match="contains custom code"):
        load_older_chat(str(folder), {})
    assert (questions, (tmp_path / "ran").exists()) == ([], False)


def test_a_template_that_writes_nothing_is_named(tiny: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tiny["a"], tmp_path / "checkpoint")
    (folder / "chat_template.jinja").write_text("")
    request = OmniRequest({"messages": [{"role": "user", "content": "hello"}]})
    with pytest.raises(InvalidRequestError, match="chat template makes nothing of them"):
        Preprocessor(str(folder), LIMITS, video_fps=2.0, max_context=None)(StagePayload("r", request, None))
