"""Replies of a scripted model by what its chat template says, on both backends: thoughts, calls of tools, special tokens, variables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_transformers.driving import replies, running, say
from tiny_transformers.scripted import RESPONSE_TEMPLATE, save_scripted

from omni_core.api import OmniRequest, ReasoningChunk, StagePayload, TextChunk
from omni_transformers.checkpoints import read
from omni_transformers.loading import load_processor
from omni_transformers.words.declaration import interface
from omni_transformers.words.engine import create_answer
from omni_transformers.words.forms import form_of
from omni_transformers.words.prepare import create_prepare
from omni_transformers.words.prompts import Prompts
from omni_transformers.words.steps import create_writer

OPENED = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}\nanswer: {% if enable_thinking %}<think>\n{% endif %}{# </think> #}"
CALLS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}[AVAILABLE_TOOLS]{# [TOOL_CALLS] #}{% endif %}>"
)
HARMONY = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}{# <|channel|> <|call|> #}<|start|>assistant"
MARKS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"]

CASES: dict[str, tuple[str, str, list[str], list[str], str, str]] = {
    "writes its thoughts": (OPENED, " ", ["<think>", "Hm", " so", "</think>", "\n\n", "Yes", "."], [], "Hm so", "Yes."),
    "a prompt that begins them": (OPENED, "\n", ["Hm", " so", "</think>", "Yes", "."], [], "Hm so", "Yes."),
    "special marks of a call": (CALLS, ">", ["[TOOL_CALLS]", "[{]", "<other>", "x"], ["[TOOL_CALLS]", "<other>"], "", "[TOOL_CALLS][{]x"),
    "channels": (
        HARMONY, "t", ["<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "Yes"], MARKS, "Hm", "Yes",
    ),
    "no marks": ("{{ messages[0].content }}>", ">", ["<think>", "Hm", "</think>"], [], "", "<think>Hm</think>"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_reply(case: str, tmp_path: Path) -> None:
    template, after, pieces, special, thoughts, text = CASES[case]
    folder = str(save_scripted(tmp_path, template, after, pieces, special))
    request = say("Hello", enable_thinking=after == "\n")
    with running(create_writer(folder)) as scheduler:
        found = replies(scheduler, [request])
    prepared = StagePayload("0", request, create_prepare(folder, backend="engine").prompt(StagePayload("0", request)))
    with running(create_answer(folder, backend="engine")) as scheduler:
        found += replies(scheduler, [prepared])
    for streamed, result in found:
        assert (result.reasoning, result.text, result.finish_reason) == (thoughts, text, "stop")
        assert "".join(each.text for each in streamed if isinstance(each, ReasoningChunk)) == thoughts
        assert "".join(each.text for each in streamed if isinstance(each, TextChunk)) == text
        assert result.usage.get("reasoning_tokens", 0) == {"Hm so": 2 + (after == " "), "Hm": 2}.get(thoughts, 0)


def test_a_response_template(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}{{ tools }}<|im_start|>assistant{{ '\\n' }}"
    pieces = ["<think>", "Hm", "</think>", "So:", "<tool>", '{"name": "f", "arguments": {}}', "</tool>", "<|im_end|>"]
    folder = save_scripted(tmp_path, template, "\n", pieces, ["<|im_start|>", "<|im_end|>"])
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"response_template": RESPONSE_TEMPLATE}))
    assert interface(read(str(folder))).tool_format == "tagged-json"
    with running(create_writer(str(folder))) as scheduler:
        [(_, result)] = replies(scheduler, [say("Hello")])
    assert result.reasoning == "Hm"
    assert result.text == 'So:<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("template", "tools", "thoughts"),
    [
        ("{{ tools }}<tool_call>{'name'...}</tool_call><think></think>", "tagged-json", "</think>"),
        ("{{ tools }}<tool_call>\n<function=example>\n<parameter=a>", "qwen-xml", None),
        ("{{ tools }}<tool_call>name\n<arg_key>k</arg_key>[gMASK]</think>", "glm-xml", "</think>"),
        (
            '{{ tools }}Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.',
            "llama-json",
            None,
        ),
        ("{{ tools }}[TOOL_CALLS][/THINK]", "listed-json", "[/THINK]"),
        ("{{ tools }}<start_function_call>call:f{", "gemma", None),
        ("{{ tools }}<|tool_call>call:f{<|channel>thought\n<channel|>", "gemma", "<channel|>"),
        ("{{ tools }}<｜tool▁call▁begin｜></think>", "deepseek", "</think>"),
        ("{{ tools }}<|channel|>analysis<|call|>", "harmony", "channels"),
        ("{{ tools }}<my_call>", None, None),
        ("<tool_call>", None, None),
    ],
)
def test_the_form_is_found_in_the_chat_template(
    tmp_path: Path, template: str, tools: str | None, thoughts: str | None
) -> None:
    (tmp_path / "chat_template.jinja").write_text(template)
    form = form_of(tmp_path)
    assert form.tools == tools
    assert (form.thoughts[1] if isinstance(form.thoughts, tuple) else form.thoughts) == thoughts


def test_variables_of_the_template_are_parameters(tmp_path: Path) -> None:
    template = (
        "{# message.thinking #}{{ messages[0].content }}{% if not enable_thinking %}!{% endif %}{{ reasoning_effort }}>"
    )
    folder = save_scripted(tmp_path, template, ">", ["x"])
    assert [each.name for each in interface(read(str(folder))).params] == ["enable_thinking", "reasoning_effort"]
    prompts = Prompts(load_processor(str(folder)), ["text"])

    def prompt(**params: Any) -> str:
        request = OmniRequest({"messages": [{"role": "user", "content": "Hi"}]}, params)
        text: str = prompts.tokenizer.decode(prompts.inputs(request)["input_ids"][0])
        return text

    assert [prompt(), prompt(enable_thinking=True, reasoning_effort="low")] == ["Hi!>", "Hilow>"]


def test_thinking_is_a_variable_of_some_templates(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(
        "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    )
    assert [each.name for each in form_of(tmp_path).variables] == ["thinking"]
