"""Renders a checkpoint's chat template, a program in Jinja that makes a prompt of messages, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from omni_core.errors import ConfigError, InvalidRequestError
from omni_torch.checkpoints import read_json

FILE = "chat_template.jinja"


def read_template(folder: str | Path) -> str | None:
    """Return the template of a checkpoint: from its own file, or from the tokenizer's config; ``None`` if neither has one."""
    folder = Path(folder)
    if (folder / FILE).is_file():
        return (folder / FILE).read_text(encoding="utf-8")
    if (folder / "tokenizer_config.json").is_file():
        template = read_json(folder / "tokenizer_config.json").get("chat_template")
        return template if isinstance(template, str) else None
    return None


class ChatTemplate:
    """A compiled template.

    Args:
        source: the template. tokens: the special tokens that it may name, such as ``eos_token``. where: the checkpoint, for errors.

    Raises:
        ConfigError: the template cannot be compiled.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], where: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigError(f"the chat template of {where} cannot be read: {error}") from error
        self._tokens = dict(tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the prompt of a conversation, up to the opening of the assistant's reply.

        Raises:
            InvalidRequestError: the template refuses the messages.
        """
        try:
            return self._template.render(
                {**self._tokens, "messages": list(messages), "tools": list(tools) or None, "documents": None},
                add_generation_prompt=True,
            )
        except Exception as error:  # templates raise what they like
            raise InvalidRequestError(f"messages: the checkpoint's chat template refuses them: {error}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    """Write JSON without the escapes that Jinja's own filter makes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
