"""Fields of requests that hold a text to a structure, and grammars of calls that the readers of their formats read back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_core.api import TEXT, Interface, ParameterGroup, structured_parameter
from omni_serve.errors import ApiError
from omni_serve.settings import Limits
from omni_serve.structured import calls_grammar, take_structured
from omni_serve.tool_formats import FORMATS, ToolCall, tool_reader
from omni_serve.tools import ToolOptions

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rom", 'a "b"']}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {**SCHEMA, "additionalProperties": False}}},
    {"type": "function", "function": {"name": "stop"}},
]


def declared(*kinds: str, **fields: Any) -> Interface:
    group = ParameterGroup("writer", TEXT, "text", [structured_parameter(*kinds)])
    return Interface(roles={TEXT: "write"}, groups=[group], **fields)


ALL = declared("json_object", "json_schema", "choice", "regex", "grammar", tool_format="tagged-json")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": {}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"json_schema": {"schema": SCHEMA, "strict": False}},
        ),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json_schema": {"schema": SCHEMA}}),
        ({"structured_outputs": {"choice": ["a"], "json_object": False}}, {"choice": ["a"]}),
        ({"structured_outputs": {}}, None),
        ({"guided_regex": "a+", "guided_json": None}, {"regex": "a+"}),
    ],
)
def test_fields_of_openai_and_vllm_are_one_parameter(given: dict[str, Any], expected: Any) -> None:
    given = {**given, "temperature": 1}
    assert take_structured(ALL, given)[0] == expected
    assert [name for name, value in given.items() if value is not None] == ["temperature"]


@pytest.mark.parametrize(
    ("interface", "given", "param", "words"),
    [
        (ALL, {"response_format": {"type": "xml"}}, "response_format", "must be"),
        (ALL, {"response_format": {"type": "json_schema"}}, "response_format.json_schema", "must be"),
        (ALL, {"structured_outputs": ["a"]}, "structured_outputs", "a mapping"),
        (ALL, {"structured_outputs": {"json": "{"}}, "structured_outputs", "no JSON schema"),
        (ALL, {"guided_json": '{"a":' * 57 + "1" + "}" * 57}, "guided_json", "no JSON schema"),
        (ALL, {"guided_json": "7"}, "guided_json", "no JSON schema"),
        (ALL, {"structured_outputs": {"regx": "a"}}, "structured_outputs.regx", "did you mean 'regex'"),
        (ALL, {"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "give one"),
        (ALL, {"guided_regex": "a", "structured": {"regex": "b"}}, "guided_regex", "given twice"),
        (declared("regex"), {"response_format": {"type": "json_object"}}, "response_format", "to regex only"),
        (Interface(), {"response_format": {"type": "json_object"}}, "response_format", "only {'type': 'text'}"),
        (Interface(), {"guided_choice": ["a"]}, "guided_choice", "no structure"),
    ],
)
def test_what_is_not_honoured_is_refused(interface: Interface, given: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        take_structured(interface, dict(given))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in caught.value.message


def options(choice: Any, interface: Interface = ALL) -> ToolOptions:
    found = ToolOptions.read(interface, Limits(), TOOLS, choice, None)
    assert found is not None
    return found


def test_tools_hold_a_reply_where_it_must_be_a_call_or_json() -> None:
    named = {"type": "function", "function": {"name": "stop"}}
    assert options("auto").held(ALL, None) is None
    assert "weather" in options("required").held(ALL, {"json_object": {}})["grammar"]  # type: ignore[index]
    assert "weather" not in options(named).held(ALL, None)["grammar"]  # type: ignore[index]
    assert "answer" in options("auto").held(ALL, {"json_object": {}})["grammar"]  # type: ignore[index]
    assert options("required").inputs == {"tools": TOOLS}
    begins = declared("grammar", tool_format="tagged-json", tool_choice=True)
    assert options("required", begins).inputs == {"tools": TOOLS, "tool_choice": "*"}
    with pytest.raises(ApiError, match="to JSON only"):
        options("auto").held(ALL, {"regex": "a"})
    xml = declared("json_object", "grammar", tool_format="qwen-xml")
    with pytest.raises(ApiError, match="only without them"):
        options("auto", xml).held(xml, {"json_object": {}})
    with pytest.raises(ApiError, match="tool_choice: only"):
        options("required", xml)


WRITTEN = [name for name in FORMATS if tool_reader(name).written is not None]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_grammar_writes_is_read_back_as_calls(name: str) -> None:
    pytest.importorskip("llguidance")
    from constrained import begin, written

    form = tool_reader(name).written
    assert form is not None
    seen = set()
    for seed in range(12):
        grammar = calls_grammar(form, TOOLS, ["weather"], parallel=seed % 2 == 0, answer=None)
        found = tool_reader(name, TOOLS).read(written(begin(grammar=grammar), seed), last=True)
        calls = [each for each in found if isinstance(each, ToolCall)]
        assert calls, found
        assert not any(each.strip() for each in found if isinstance(each, str))
        assert len(calls) == 1 or seed % 2 == 0
        for call in calls:
            arguments = json.loads(call.arguments)
            assert arguments == {} if call.name == "stop" else arguments["city"] in ("Rom", 'a "b"')
            seen.add(call.name)
    assert seen == {"weather", "stop"}
    both = calls_grammar(form, TOOLS, [], parallel=False, answer={"schema": {"const": 7}})
    assert {"7"} < {written(begin(grammar=both), seed) for seed in range(12)}
