"""Renders a checkpoint's chat templates, programs in Jinja that make a prompt of messages, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from omni_core.api import ConfigError, InvalidRequestError
from omni_torch.api import DEFAULT, TOOLS, read_templates


class _Generation(Extension):
    """``{% generation %}``: marks the assistant's text for training, and changes nothing here."""

    tags = {"generation"}  # noqa: RUF012 (of jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Callable[[], str]) -> str:
        return caller()


class ChatTemplate:
    """The compiled templates of a checkpoint.

    Args:
        tokens: the special tokens that they may name, such as ``eos_token``.

    Raises:
        ConfigError: there is no template, or one cannot be compiled.
    """

    def __init__(self, folder: str | Path, tokens: Mapping[str, Any]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        sources = read_templates(folder)
        if not sources:
            raise ConfigError(
                f"{folder} has no chat template (chat_template.jinja, chat_template.json, or a field of tokenizer_config.json); "
                "download the checkpoint again"
            )
        self._templates: dict[str, Template] = {}
        for name in {DEFAULT, TOOLS} & sources.keys():
            try:
                self._templates[name] = environment.from_string(sources[name])
            except RecursionError:
                raise ConfigError(f"the chat template of {folder} cannot be read: it is nested too deeply") from None
            except Exception as error:  # also what Python says of the program that Jinja makes of it
                raise ConfigError(f"the chat template of {folder} cannot be read: {error}") from error
        self._tokens = dict(tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the prompt of a conversation, up to the opening of the assistant's reply.

        With ``tools`` it is that of the template ``tool_use``, if there is one.

        Raises:
            InvalidRequestError: the template refuses the messages.
        """
        template = self._templates[TOOLS if tools and TOOLS in self._templates else DEFAULT]
        try:
            return template.render(
                {**self._tokens, "messages": list(messages), "tools": list(tools) or None, "documents": None},
                add_generation_prompt=True,
            )
        except Exception as error:  # templates raise what they like
            raise InvalidRequestError(f"messages: the checkpoint's chat template refuses them: {error}") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the escapes that Jinja's own filter makes for HTML, with the options that transformers' filter has."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
