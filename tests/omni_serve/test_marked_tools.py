"""Calls of tools in the forms of further models are read out of a text that arrives in any pieces."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_serve.tool_formats import FORMATS, ToolCall, tool_reader

ARGUMENTS = {"place": 'Rome "é" {[', "days": 3, "dry": True, "near": None, "more": {"list": [1.5, "x"]}}
PROPERTIES = {
    "place": {"type": "string"},
    "days": {"type": "integer"},
    "dry": {"type": "boolean"},
    "near": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "more": {"type": "object"},
}
TOOLS = [
    {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": PROPERTIES}}}
]
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
TEXTS = {name: each if isinstance(each, str) else json.dumps(each) for name, each in ARGUMENTS.items()}
GEMMA = 'call:look_up{place:<escape>Rome "é" {[<escape>,days:3,dry:true,near:null,more:{list:[1.5,<escape>x<escape>]}}'

CALLS = {
    "tagged-json": f'<tool_call>{{"name": "look_up", "arguments": {JSON}}}</tool_call>',
    "qwen-xml": "<tool_call>\n<function=look_up>\n"
    + "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in TEXTS.items())
    + "</function>\n</tool_call>",
    "glm-xml": "<tool_call>look_up\n"
    + "".join(f"<arg_key>{name}</arg_key>\n<arg_value>{text}</arg_value>\n" for name, text in TEXTS.items())
    + "</tool_call>",
    "llama-json": f'{{"name": "look_up", "parameters": {JSON}}}',
    "listed-json": f'[TOOL_CALLS][{{"name": "look_up", "arguments": {JSON}, "id": "abc"}}]',
    "gemma": f"<start_function_call>{GEMMA}<end_function_call>",
    "deepseek": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "harmony": f"<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{JSON}<|call|>",
}
"""The same call in each format."""

OTHERS = {
    "llama-json": [f"<|python_tag|>{CALLS['llama-json']}", CALLS["llama-json"].replace("parameters", "arguments")],
    "listed-json": [
        f"[TOOL_CALLS]look_up[ARGS]{JSON}",
        f"[TOOL_CALLS]look_up[CALL_ID]abc12[ARGS] {JSON}",
        f"[TOOL_CALLS]look_up{JSON}",
        f'<|tool_call|>[{{"name": "look_up", "arguments": {JSON}}}]<|/tool_call|>',
    ],
    "gemma": ["<|tool_call>" + GEMMA.replace("<escape>", '<|"|>') + "<tool_call|>"],
    "deepseek": [f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>look_up\n```json\n{JSON}\n```<｜tool▁call▁end｜>"],
    "harmony": [
        f"<|start|>assistant<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{JSON}<|call|>",
        f"<|start|>assistant to=functions.look_up<|channel|>commentary json<|message|>{JSON}<|call|>",
    ],
}
ENDED = {"qwen-xml", "glm-xml", "gemma", "deepseek", "harmony"}

Found = list[str | tuple[str, Any]]


def read(name: str, pieces: list[str]) -> tuple[Found, str]:
    """Return texts and calls in order, and all that was written."""
    reader, found, written = tool_reader(name, TOOLS), Found(), ""
    for number, piece in enumerate(pieces):
        for each in reader.read(piece, last=number == len(pieces) - 1):
            written += each if isinstance(each, str) else each.text
            if isinstance(each, ToolCall):
                found.append((each.name, json.loads(each.arguments)))
            elif found and isinstance(found[-1], str):
                found[-1] += each
            else:
                found.append(each)
    return found, written


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


def test_every_format_is_here() -> None:
    assert set(CALLS) == set(FORMATS)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_arguments_of_every_type(name: str) -> None:
    wanted = ("look_up", ARGUMENTS)
    for text in (CALLS[name], *OTHERS.get(name, ())):
        assert read(name, [text])[0] == [wanted]
        assert read(name, list(text))[0] == [wanted], "a character at a time"
        if name != "llama-json":
            assert read(name, [f"So:\n{text}\n"])[0] == ["So:", wanted]
    between = "; " if name == "llama-json" else "\n"
    assert read(name, [f"{text}{between}{CALLS[name]}"])[0] == [wanted, wanted]


@pytest.mark.parametrize("name", sorted(ENDED))
def test_the_end_of_the_last_call_may_be_missing(name: str) -> None:
    ends = ("</tool_call>", "<end_function_call>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "<|call|>")
    text = next(CALLS[name].removesuffix(each) for each in ends if CALLS[name].endswith(each))
    assert read(name, [text])[0] == [("look_up", ARGUMENTS)]


SCRAPS = [
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    " ",
    ";",
    "\n",
    "a",
    "é",
    "call:",
    "look_up",
    "<",
    "<|",
    "[TOOL_CALLS]",
    "<|python_tag|>",
]


@pytest.mark.parametrize("name", [each for each in CALLS if each != "tagged-json"])
@given(data=st.data())
def test_pieces_do_not_matter_and_nothing_is_lost(name: str, data: st.DataObject) -> None:
    calls = [CALLS[name], *OTHERS.get(name, ())]
    halves = [call[:at] for call in calls for at in (8, 15, len(call) // 2)] + [call[-12:] for call in calls]
    text = "".join(data.draw(st.lists(st.sampled_from(SCRAPS + calls + halves), max_size=7)))
    whole, written = read(name, [text])
    assert read(name, cut(text, data.draw(st.lists(st.integers(0, 9), max_size=80)))) == (whole, written)
    for noise in getattr(tool_reader(name), "noise", ()):
        text, written = text.replace(noise, ""), written.replace(noise, "")
    assert "".join(written.split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama-json", '{"name": "Ann", "age": 3}'),
        ("llama-json", 'See: {"name": "look_up", "parameters": {}}'),
        ("llama-json", "{ not JSON"),
        ("listed-json", '[TOOL_CALLS] [1, {"name": "f"}]'),
        ("listed-json", "[TOOL_CALLS] of the form"),
        ("qwen-xml", "<tool_call><function=f>oh</function></tool_call>"),
        ("glm-xml", "<tool_call>two words</tool_call>"),
        ("gemma", "<start_function_call>call:f{a:<escape>b}<end_function_call>"),
        ("deepseek", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>[1]<｜tool▁call▁end｜>"),
        ("harmony", "<|channel|>final<|message|>Hello<|return|>"),
    ],
)
def test_what_is_no_call_stays_text(name: str, text: str) -> None:
    assert read(name, [text])[0] == [text]


def test_an_answer_is_not_held_back() -> None:
    reader = tool_reader("llama-json")
    assert reader.read("Hello") == ["Hello"]
    assert reader.read(" {") == [" {"]


@pytest.mark.parametrize("name", CALLS)
def test_the_work_is_linear_in_the_reply(name: str) -> None:
    call = CALLS[name]
    begin = time.process_time()
    for text in (
        call[: len(call) // 2] * 2000,
        call[:-1] * 500,
        call[:16] * 5000,
        "[TOOL_CALLS]" * 10_000,
        '{"a": ' * 10_000,
    ):
        read(name, cut(text, [50] * (len(text) // 50)))
    assert time.process_time() - begin < 3
