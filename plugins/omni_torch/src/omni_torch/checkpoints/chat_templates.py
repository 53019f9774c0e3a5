"""Finds the chat templates of a checkpoint, in any of the files in which transformers looks for them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.api import ConfigError
from omni_torch.checkpoints.folders import read_json, read_text

DEFAULT, TOOLS = "default", "tool_use"
"""The names of the template of a conversation, and of one that calls tools, if that has a template of its own."""

FILE = "chat_template.jinja"
"""The file of the template ``default``."""

OLDER = "chat_template.json"
"""The file in which processors of transformers 4 keep it."""

FOLDER = "additional_chat_templates"
"""The folder of the others, ``NAME.jinja``."""


def read_templates(folder: str | Path) -> dict[str, str]:
    """Return the templates of a checkpoint by name; none, if it has none.

    The order is that of transformers' processors, then tokenizers: ``processor_config.json``; ``chat_template.json``;
    ``chat_template.jinja`` and ``additional_chat_templates/*.jinja``; ``tokenizer_config.json``. The first place that has a template is
    the only one that is read.

    Raises:
        ConfigError: a file cannot be read or holds something else; there is ``chat_template.json`` beside additional templates, which
            transformers refuses too; or there are templates and none is ``default``.
    """
    folder = Path(folder)
    found = (
        _in_config(folder / "processor_config.json")
        or _in_files(folder)
        or _in_config(folder / "tokenizer_config.json")
    )
    if found and DEFAULT not in found:
        raise ConfigError(
            f"{folder}: its chat templates are {', '.join(sorted(found))}; one must be called {DEFAULT!r}"
        )
    return found


def _in_files(folder: Path) -> dict[str, str]:
    more = {path.stem: path for path in sorted((folder / FOLDER).glob("*.jinja"))}
    if (folder / OLDER).exists():
        if more:
            raise ConfigError(
                f"{folder} has {OLDER} and {FOLDER}, of which one only is allowed; rename {OLDER} to keep the folder"
            )
        found = _in_config(folder / OLDER)
        if not found:
            raise ConfigError(f"{folder / OLDER} lacks the field chat_template; download the checkpoint again")
        return found
    if (folder / FILE).exists():
        more[DEFAULT] = folder / FILE
    return {name: read_text(path) for name, path in more.items()}


def _in_config(path: Path) -> dict[str, str]:
    """Return what the field ``chat_template`` of a file holds: a template, templates by name, or a list of ``{name, template}``."""
    given: Any = read_json(path).get("chat_template") if path.exists() else None
    if given is None:
        return {}
    if isinstance(given, list) and all(
        isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in given
    ):
        given = {each["name"]: each.get("template") for each in given}
    found = {DEFAULT: given} if isinstance(given, str) else given
    if not isinstance(found, dict) or not found or not all(isinstance(each, str) for each in found.values()):
        raise ConfigError(
            f"{path}: chat_template must be a template, an object of them by name, or a list of name and template"
        )
    return found
