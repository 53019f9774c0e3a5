"""The templates of a checkpoint, from every file that may hold them, are those that transformers' processor renders with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer
from transformers.processing_utils import ProcessorMixin

from omni_core.errors import ConfigError
from omni_torch.checkpoints.chat_templates import read_templates
from omni_torch.checkpoints.folders import LARGEST_TEXT

NAMED = [{"name": "default", "template": "list"}, {"name": "tool_use", "template": "list with tools"}]

FILES: dict[str, Any] = {
    "processor_config.json": {"chat_template": "processor"},
    "chat_template.json": {"chat_template": "older"},
    "chat_template.jinja": "newer",
    "additional_chat_templates/tool_use.jinja": "newer with tools",
    "tokenizer_config.json": {"chat_template": "tokenizer"},
}

CASES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "none": ({}, {}),
    "newer": ({"chat_template.jinja": "newer"}, {"default": "newer"}),
    "older": ({"chat_template.json": {"chat_template": "older"}}, {"default": "older"}),
    "older by name": ({"chat_template.json": {"chat_template": {"default": "a", "b": "c"}}}, {"default": "a", "b": "c"}),
    "tokenizer": ({"tokenizer_config.json": {"chat_template": "one"}}, {"default": "one"}),
    "tokenizer's list": ({"tokenizer_config.json": {"chat_template": NAMED}}, {"default": "list", "tool_use": "list with tools"}),
    "processor": ({"processor_config.json": {"chat_template": "one"}}, {"default": "one"}),
    "null": ({"processor_config.json": {"chat_template": None}, "tokenizer_config.json": {"chat_template": None}}, {}),
    "all but the older": (
        {name: FILES[name] for name in FILES if name not in ("processor_config.json", "chat_template.json")},
        {"default": "newer", "tool_use": "newer with tools"},
    ),
    "older and newer": (
        {name: FILES[name] for name in ("chat_template.json", "chat_template.jinja", "tokenizer_config.json")},
        {"default": "older"},
    ),
    "processor and all others": ({name: FILES[name] for name in FILES if "additional" not in name}, {"default": "processor"}),
    "the tokenizer's, and none in the others": (
        {"processor_config.json": {}, "tokenizer_config.json": {"chat_template": "one"}}, {"default": "one"},
    ),
}  # fmt: skip


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_the_order_is_that_of_transformers(tmp_path: Path, name: str) -> None:
    files, expected = CASES[name]
    assert read_templates(write(tmp_path, files)) == expected
    if files.keys() - {"tokenizer_config.json"}:
        given = ProcessorMixin.get_processor_dict(tmp_path)[0].get("chat_template")
    else:
        given = None
    if given is None and "tokenizer_config.json" in files:
        Tokenizer(models.BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
        write(tmp_path, {"config.json": {"model_type": "qwen2"}})
        given = AutoTokenizer.from_pretrained(tmp_path).chat_template
    assert ({} if given is None else {"default": given} if isinstance(given, str) else given) == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({name: FILES[name] for name in ("chat_template.json", "additional_chat_templates/tool_use.jinja")}, "one only is allowed"),
        ({"additional_chat_templates/rag.jinja": "x"}, "its chat templates are rag; one must be called 'default'"),
        ({"chat_template.json": {"template": "x"}}, "chat_template.json lacks the field chat_template"),
        ({"chat_template.json": "["}, "chat_template.json cannot be read"),
        *(
            ({file: {"chat_template": value}}, f"{file}: chat_template must be a template, an object")
            for file in ("chat_template.json", "tokenizer_config.json", "processor_config.json")
            for value in (3, {}, [], {"default": 3}, [{"name": "default"}], [{"name": ["default"], "template": "x"}], [3])
        ),
    ],
)  # fmt: skip
def test_other_content_is_named(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_templates(write(tmp_path, files))


def test_files_that_cannot_be_read_at_once_are_named(tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"chat_template.jinja cannot be read"):
        read_templates(tmp_path)
    with path.open("wb") as file:
        file.truncate(LARGEST_TEXT + 1)
    with pytest.raises(ConfigError, match=f"has {LARGEST_TEXT + 1} bytes, more than"):
        read_templates(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"chat_template.jinja is no regular file"):
        read_templates(tmp_path)
