"""The form of thoughts and of calls of tools in the replies of a checkpoint, by its chat template. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

from attrs import frozen

from omni_core.api import Parameter
from omni_torch.api import read_json, read_templates

CHANNELS = "channels"
"""Thoughts of gpt-oss: messages of a channel, in front of those of another."""

THOUGHTS = {
    "<channel|>": ("<|channel>thought\n", "<channel|>"),
    "[/THINK]": ("[THINK]", "[/THINK]"),
    "</seed:think>": ("<seed:think>", "</seed:think>"),
    "</think>": ("<think>", "</think>"),
}
"""Marks around thoughts, by what a chat template with them has."""

_TOOLS = (
    ("harmony", r"<\|channel\|>(?=[\s\S]*<\|call\|>)"),
    ("deepseek", "<｜tool▁call▁begin｜>"),
    ("listed-json", r"\[TOOL_CALLS\]|<\|tool_call\|>"),
    ("gemma", r"<start_function_call>|<\|tool_call>"),
    ("glm-xml", "<arg_key>"),
    ("qwen-xml", r"<tool_call>(?=[\s\S]*<function=)|<function=(?=[\s\S]*<tool_call>)"),
    ("tagged-json", "<tool_call>"),
    (
        "llama-json",
        r"""\{["']name["']: function name, ["']parameters["']: dictionary of argument name and its value\}""",
    ),
)
"""Formats of :mod:`omni_serve.tool_formats`, by what a chat template has that asks for them; the first holds."""

_MARKS = {
    "harmony": ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"],
    "deepseek": [f"<｜tool▁{each}｜>" for each in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")],
    "listed-json": ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<|tool_call|>", "<|/tool_call|>"],
    "gemma": ["<start_function_call>", "<end_function_call>", "<escape>", "<|tool_call>", "<tool_call|>", '<|"|>'],
    "glm-xml": ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "qwen-xml": ["<tool_call>", "</tool_call>"],
    "tagged-json": ["<tool_call>", "</tool_call>"],
    "llama-json": ["<|python_tag|>"],
}

_VARIABLES = {
    r"\benable_thinking\b": Parameter("enable_thinking", "boolean", "think before the answer"),
    r"\b(?:if|if not|set) thinking\b": Parameter("thinking", "boolean", "think before the answer"),
    r"\breasoning_effort\b": Parameter(
        "reasoning_effort",
        "string",
        "how long it thinks before the answer",
        choices=["none", "minimal", "low", "medium", "high", "xhigh"],
    ),
}

VARIABLES = tuple(each.name for each in _VARIABLES.values())
"""Variables of chat templates that a request may set, where the template has them."""


@frozen
class Form:
    """The form of the replies of a checkpoint.

    Attributes:
        tools: of its calls, as a server knows it; ``None``: it calls none.
        thoughts: the marks around them, or :data:`CHANNELS`; ``None``: it tells none.
        marks: special tokens that replies are read by.
        templated: its tokenizer has a response template, by which transformers reads replies.
        variables: request parameters that are variables of its chat template.
    """

    tools: str | None = None
    thoughts: tuple[str, str] | str | None = None
    marks: tuple[str, ...] = ()
    templated: bool = False
    variables: tuple[Parameter, ...] = ()

    @property
    def is_text(self) -> bool:
        """True if its answers are plain text after the thoughts, which can be held to a structure from there on."""
        return not self.templated and self.thoughts != CHANNELS


def form_of(folder: Path) -> Form:
    """Return the form of a checkpoint's replies.

    Raises:
        ConfigError: its chat templates cannot be read.
    """
    text = " ".join(read_templates(folder).values())
    variables = tuple(each for pattern, each in _VARIABLES.items() if re.search(pattern, text))
    takes_tools = "tools" in text
    path = folder / "tokenizer_config.json"
    if path.exists() and isinstance(read_json(path).get("response_template"), dict):
        return Form("tagged-json" if takes_tools else None, templated=True, variables=variables)
    found = next((name for name, pattern in _TOOLS if re.search(pattern, text)), None)
    thoughts = CHANNELS if found == "harmony" else next((each for mark, each in THOUGHTS.items() if mark in text), None)
    marks = _MARKS.get(found or "", [])
    if isinstance(thoughts, tuple):
        marks = [*marks, *(each.removesuffix("thought\n") for each in thoughts)]
    return Form(found if takes_tools else None, thoughts, tuple(marks), variables=variables)
