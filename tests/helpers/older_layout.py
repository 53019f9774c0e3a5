"""Rewrites a checkpoint as transformers 4.5x saved it, the layout of most published omni checkpoints, for tests of their readers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any


def write_older_layout(source: Path, target: Path) -> Path:
    """Write the checkpoint ``source``, of transformers 5, into the folder ``target``, which is made; return it.

    ``chat_template.json`` takes the place of ``chat_template.jinja``; ``vocab.json``, ``merges.txt`` and ``added_tokens_decoder`` that of
    ``tokenizer.json``; ``preprocessor_config.json`` holds the settings of all processors; ``config.json`` has ``rope_theta``,
    ``rope_scaling`` and ``torch_dtype``.
    """
    shutil.copytree(source, target)
    template = target / "chat_template.jinja"
    _write(target / "chat_template.json", {"chat_template": template.read_text()})
    template.unlink()
    (target / "video_preprocessor_config.json").unlink(missing_ok=True)
    _write(target / "config.json", {**_older(_read(target / "config.json")), "transformers_version": "4.57.1"})
    _write_tokenizer(target)
    return target


def _write_tokenizer(folder: Path) -> None:
    whole, settings = _read(folder / "tokenizer.json"), _read(folder / "tokenizer_config.json")
    (folder / "tokenizer.json").unlink()
    added = {each["content"]: each for each in whole["added_tokens"]}
    words = {name: number for name, number in whole["model"]["vocab"].items() if name not in added}
    _write(folder / "vocab.json", words)
    merges = [each if isinstance(each, str) else " ".join(each) for each in whole["model"]["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    _write(folder / "added_tokens.json", {name: each["id"] for name, each in added.items()})
    decoder = {str(each["id"]): {key: each[key] for key in each if key != "id"} for each in added.values()}
    special = [name for name, each in added.items() if each["special"]]
    named = {key: value for key, value in settings.items() if key.endswith("_token")}
    _write(folder / "special_tokens_map.json", {"additional_special_tokens": special, **named})
    for key in ("extra_special_tokens", "backend"):
        settings.pop(key, None)
    settings |= {"added_tokens_decoder": decoder, "additional_special_tokens": special, "add_bos_token": False}
    _write(folder / "tokenizer_config.json", {**settings, "add_prefix_space": False, "errors": "replace"})


def _older(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    made = {key: _older(each) for key, each in value.items()}
    if "dtype" in made:
        made["torch_dtype"] = made.pop("dtype")
    rope = made.pop("rope_parameters", None)
    if rope is not None:
        made["rope_theta"] = rope.pop("rope_theta")
        made["rope_scaling"] = {**rope, "type": rope["rope_type"]} if "mrope_section" in rope else None
    return made


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
