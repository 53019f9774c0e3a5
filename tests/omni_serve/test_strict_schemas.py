"""Schemas of strict tools: the keywords of OpenAI's, and what could keep the server busy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_serve.errors import ApiError
from omni_serve.strict_schemas import StrictSchema


def accepts(properties: dict[str, Any], arguments: dict[str, Any], **others: Any) -> bool:
    schema = {"type": "object", "properties": properties, "additionalProperties": False, **others}
    return StrictSchema(schema, "parameters").accepts(json.dumps(arguments))


NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["next"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ["", "x"], [1, None, [], {}]),
        ({"type": "integer"}, [1, -2, 3.0], [1.5, True, "1"]),
        ({"type": "number"}, [1, 1.5], [False, "1"]),
        ({"type": "boolean"}, [True, False], [0, 1]),
        ({"type": ["array", "null"], "items": {"type": "string"}}, [None, [], ["x"]], [[1], "x"]),
        ({"enum": ["c", "f", None]}, ["c", None], ["k", False]),
        ({"enum": [1]}, [1], [True]),
        ({"const": "x"}, ["x"], ["y"]),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]}, ["x", 3], [2, None]),
        ({"type": "integer", "minimum": 1, "maximum": 3}, [1, 3], [0, 4]),
        ({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 3}, [2], [1, 3]),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ["ab"], ["", "abc"]),
        ({"type": "array", "minItems": 1, "maxItems": 2}, [[1]], [[], [1, 2, 3]]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"a": 1}], [{"a": "x"}]),
        ({"type": "object", "required": ["a"]}, [{"a": 1}], [{}, {"b": 1}]),
        (
            {"$ref": "#/$defs/node"},
            [{"next": None}, {"next": {"next": None}}],
            [{}, {"next": 1}, {"next": {"next": 1}}],
        ),
        ({"type": "string", "title": "A", "description": "B", "default": "C"}, ["x"], [1]),
    ],
)
def test_values_match_or_not(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    for values, expected in ((good, True), (bad, False)):
        for value in values:
            assert accepts({"value": schema}, {"value": value}, **{"$defs": {"node": NODE}}) is expected, value


def test_no_other_properties_and_none_missing() -> None:
    assert accepts({"a": {}}, {"a": 1}, required=["a"])
    assert not accepts({"a": {}}, {"a": 1, "b": 2})
    assert not accepts({"a": {}}, {}, required=["a"])


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"type": "string"}, "parameters"),
        ({"type": "object", "propertis": {}}, "parameters.propertis"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "parameters.properties.a.type"),
        ({"type": "object", "properties": []}, "parameters.properties"),
        ({"type": "object", "properties": {"a": 1}}, "parameters.properties.a"),
        ({"type": "object", "required": "a"}, "parameters.required"),
        ({"type": "object", "items": {"enum": []}}, "parameters.items.enum"),
        ({"type": "object", "anyOf": [{"minimum": "1"}]}, "parameters.anyOf[0].minimum"),
        ({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/x"}}}, "parameters.properties.a.$ref"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, "parameters.properties.a.$ref"),
    ],
)
def test_what_is_not_checked_is_refused_by_name(schema: dict[str, Any], where: str) -> None:
    with pytest.raises(ApiError) as caught:
        StrictSchema(schema, "parameters")
    assert (caught.value.status, caught.value.param) == (400, where)


def test_schemas_without_an_end_are_given_up() -> None:
    """Without a bound the first would take 2 to the power of 32 steps."""
    fork = {"anyOf": [{"$ref": "#/$defs/fork"}, {"$ref": "#/$defs/fork"}]}
    assert not accepts({"a": {"$ref": "#/$defs/fork"}}, {"a": 1}, **{"$defs": {"fork": fork}})
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"items": deep}
    with pytest.raises(ApiError, match="deep"):
        accepts({"a": deep}, {"a": 1})
