"""Texts that are held to a structure, and their log probabilities, by the engine over a network with random weights."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from tiny_transformers import causal
from tiny_transformers.driving import replies, running
from transformers import AutoModelForCausalLM, AutoTokenizer

from omni_core.api import InvalidRequestError, OmniRequest
from omni_transformers.words.engine import create_answer
from omni_transformers.words.prepare import create_prepare

pytest.importorskip("llguidance")

FOLDER = "LlamaForCausalLM"
LETTERS = {"type": "string", "pattern": "^[a-z]{1,6}$"}
PERSON = {
    "type": "object",
    "properties": {"name": LETTERS, "age": {"type": "integer", "minimum": 0, "maximum": 130}, "ok": {"type": "boolean"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 3},
    {"enum": ["red", "green", 3, None, {"a": [1, 2]}]},
    {"anyOf": [{"type": "null"}, {"type": "number", "minimum": -1, "maximum": 1}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {**PERSON, "properties": {"left": {"$ref": "#/$defs/leaf"}}, "required": []}, "leaf": LETTERS}},
    {"type": "object", "properties": {"when": {"type": "string", "format": "date"}}, "required": ["when"], "additionalProperties": False},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "array", "prefixItems": [{"const": "a"}, {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50}], "items": False, "minItems": 2},
]  # fmt: skip


def say(**params: Any) -> OmniRequest:
    return OmniRequest({"messages": [{"role": "user", "content": "Hello"}]}, {"answer": {"max_new_tokens": 400, **params}})


def answered(*requests: OmniRequest) -> list[tuple[list[Any], Any]]:
    """Send all requests at once."""
    folder = str(causal.checkpoint(FOLDER))
    with running(create_prepare(folder, backend="engine")) as prepare:
        prompts = [result for _, result in replies(prepare, requests)]
    with running(create_answer(folder, backend="engine", max_running=8)) as answer:
        from omni_core.api import StagePayload

        return replies(answer, [StagePayload(str(n), each.without_inputs(), prompts[n]) for n, each in enumerate(requests)])


def test_texts_are_what_their_requests_say_beside_free_ones() -> None:
    hot = {"temperature": 1.5}
    asked = [say(structured={"json_schema": {"schema": each}}, seed=seed, **hot) for each in SCHEMAS for seed in (1, 2)]
    asked += [say(structured={"choice": ["yes", "no (never)", "ä|b"]}, seed=seed, **hot) for seed in range(3)]
    asked += [say(structured={"regex": r"[0-9]{3}-[a-f]+x"}, seed=3, **hot)]
    asked += [say(structured={"grammar": 'start: "<" %json {"type": "integer", "minimum": 7, "maximum": 8} ">"'}, seed=4, **hot)]
    free = say(max_new_tokens=20)
    found = answered(free, *asked)
    alone = answered(free)[0][1]
    assert found[0][1].token_ids == alone.token_ids
    texts = [result.text for _, result in found[1:]]
    assert {result.finish_reason for _, result in found[1:]} == {"stop"}
    for schema, text in zip([each for each in SCHEMAS for _ in range(2)], texts, strict=False):
        Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(json.loads(text))
    *choices, number, called = texts[2 * len(SCHEMAS) :]
    assert set(choices) <= {"yes", "no (never)", "ä|b"}
    assert re.fullmatch("[0-9]{3}-[a-f]+x", number)
    assert called in ("<7>", "<8>")
