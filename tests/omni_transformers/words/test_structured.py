"""Texts that are held to a structure, and their log probabilities, by the engine over a network with random weights."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import openai
import pytest
import torch
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, StringConstraints
from tiny_transformers import byte_tokenizer, causal
from tiny_transformers.driving import replies, running
from tiny_transformers.scripted import save_scripted
from tiny_transformers.serving import served
from transformers import AutoModelForCausalLM, AutoTokenizer

from omni_core.api import OmniRequest, StagePayload
from omni_transformers.words.engine import create_answer
from omni_transformers.words.prepare import create_prepare

pytest.importorskip("llguidance")

FOLDER = "LlamaForCausalLM"
LETTERS = {"type": "string", "pattern": "^[a-z]{1,6}$"}
PERSON = {
    "type": "object",
    "properties": {
        "name": LETTERS,
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {**PERSON, "properties": {"left": {"$ref": "#/$defs/leaf"}}, "required": []}
FIVES = {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 3},
    {"enum": ["red", "green", 3, None, {"a": [1, 2]}]},
    {"anyOf": [{"type": "null"}, {"type": "number", "minimum": -1, "maximum": 1}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": TREE, "leaf": LETTERS}},
    {**PERSON, "properties": {"when": {"type": "string", "format": "date"}}, "required": ["when"]},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "array", "prefixItems": [{"const": "a"}, FIVES], "items": False, "minItems": 2},
]


def say(**params: Any) -> OmniRequest:
    return OmniRequest(
        {"messages": [{"role": "user", "content": "Hello"}]}, {"answer": {"max_new_tokens": 400, **params}}
    )


def answered(*requests: OmniRequest, folder: str | None = None) -> list[tuple[list[Any], Any]]:
    """Send all requests at once."""
    folder = folder or str(causal.checkpoint(FOLDER))
    with running(create_prepare(folder, backend="engine")) as prepare:
        prompts = [result for _, result in replies(prepare, requests)]
    with running(create_answer(folder, backend="engine", max_running=8)) as answer:
        return replies(
            answer, [StagePayload(str(n), each.without_inputs(), prompts[n]) for n, each in enumerate(requests)]
        )


def test_texts_are_what_their_requests_say_beside_free_ones() -> None:
    hot = {"temperature": 1.5}
    asked = [say(structured={"json_schema": {"schema": each}}, seed=seed, **hot) for each in SCHEMAS for seed in (1, 2)]
    asked += [say(structured={"choice": ["yes", "no (never)", "ä|b"]}, seed=seed, **hot) for seed in range(3)]
    asked += [say(structured={"regex": r"[0-9]{3}-[a-f]+x"}, seed=3, **hot)]
    asked += [
        say(
            structured={"grammar": 'start: "<" %json {"type": "integer", "minimum": 7, "maximum": 8} ">"'},
            seed=4,
            **hot,
        )
    ]
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


def test_log_probabilities_are_those_of_a_forced_forward_pass_before_temperature_and_constraint() -> None:
    folder = str(causal.checkpoint(FOLDER))
    asked = {"temperature": 1.5, "seed": 5, "top_logprobs": 3, "repetition_penalty": 1.3}
    held = say(**asked, structured={"regex": "[a-zä]{12}"})
    (streamed, free), (_, text) = answered(say(max_new_tokens=12, **asked), held)
    assert [each for chunk in streamed for each in chunk.logprobs] == free.logprobs
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True)[
        "input_ids"
    ]
    for result in (free, text):
        ids = [each for each in result.token_ids if each != 258]
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        best = logits.log_softmax(-1).topk(3)
        told = [each for each in result.logprobs if each.token_id < 256]
        assert [each.token_id for each in told] == [each for each in ids if each < 256]
        places = [place for place, each in enumerate(ids) if each < 256]
        for place, each in zip(places, told, strict=True):
            assert each.logprob == pytest.approx(float(logits[place].log_softmax(-1)[each.token_id]), abs=1e-4)
            assert [likely.token_id for likely in each.top] == best.indices[place].tolist()
            assert [likely.logprob for likely in each.top] == pytest.approx(best.values[place].tolist(), abs=1e-4)
    assert b"".join(each.data for each in text.logprobs).decode() == text.text
    assert math.exp(text.logprobs[0].logprob) < 0.5, "the constraint would be seen in it"


def test_a_structure_holds_the_answer_behind_the_thoughts(tmp_path: Path) -> None:
    thinks = (
        "{{ messages[0]['content'] }}{% if false %}</think>{% endif %}{% if add_generation_prompt %}<think>{% endif %}"
    )
    pieces = ["I ", "am ", "asked", "</think>", "no"]
    folder = save_scripted(tmp_path, thinks, "<think>", pieces, special=["<think>", "</think>"])
    [(_, result)] = answered(say(structured={"choice": ["yes"]}, top_logprobs=0), folder=str(folder))
    assert (result.reasoning, result.text) == ("I am asked", "yes")
    assert "".join(each.text for each in result.logprobs) == "yes"


@pytest.mark.parametrize("backend", ["steps", pytest.param("generate", marks=pytest.mark.full)])
def test_texts_of_generate_are_held_alike(backend: str, tmp_path: Path) -> None:
    folder = str(causal.checkpoint(FOLDER))
    asked = [
        say(structured={"json_schema": {"schema": SCHEMAS[0]}}, seed=1, temperature=1.5, top_logprobs=1),
        say(max_new_tokens=9, temperature=1.5, seed=2, top_logprobs=1),
    ]
    with running(create_answer(folder, backend=backend)) as answer:
        found = replies(answer, [StagePayload(str(n), each.without_inputs(), each) for n, each in enumerate(asked)])
    for (streamed, ours), (_, same) in zip(found, answered(*asked), strict=True):
        assert ours.token_ids == same.token_ids
        told = [each for chunk in streamed for each in chunk.logprobs]
        assert [each.token_id for each in told] == [each.token_id for each in same.logprobs]
        assert [each.logprob for each in told] == pytest.approx([each.logprob for each in same.logprobs], abs=1e-4)
    thinks = (
        "{{ messages[0]['content'] }}{% if false %}</think>{% endif %}{% if add_generation_prompt %}<think>{% endif %}"
    )
    pieces = ["I ", "am ", "asked", "</think>", "no"]
    script = save_scripted(tmp_path, thinks, "<think>", pieces, special=["<think>", "</think>"])
    held = say(structured={"choice": ["yes"]})
    with running(create_answer(str(script), backend=backend)) as answer:
        [(_, result)] = replies(answer, [StagePayload("0", held.without_inputs(), held)])
    assert (result.reasoning, result.text) == ("I am asked", "yes")


TOOLS_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PERSON}}
STOP = {"type": "function", "function": {"name": "stop"}}


class Person(BaseModel):
    """A person, by the type that is asked for."""

    name: Annotated[str, StringConstraints(max_length=5)]
    age: Annotated[int, Field(ge=0, le=130)]
    mood: Literal["good", "bad"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("forks")
async def test_openais_client_gets_what_it_asks_for(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    causal.model_of(FOLDER).save_pretrained(folder)
    byte_tokenizer(template=TOOLS_TEMPLATE).save_pretrained(folder)
    said: Any = [{"role": "user", "content": "Hello"}]
    hot: Any = {"model": "tiny", "messages": said, "temperature": 1.5, "max_tokens": 900}
    async with served(folder) as client:
        chat = client.chat.completions
        parsed = await chat.parse(**hot, seed=1, response_format=Person)
        assert isinstance(parsed.choices[0].message.parsed, Person)
        body = {"seed": 1}
        response = await client.responses.parse(
            model="tiny", input="Hello", temperature=1.5, max_output_tokens=900, text_format=Person, extra_body=body
        )
        assert isinstance(response.output_parsed, Person)

        several = await chat.create(
            **hot, seed=3, n=3, response_format={"type": "json_object"}, extra_body={"max_tokens": 30}
        )
        assert [each.index for each in several.choices] == [0, 1, 2]
        assert len({each.message.content for each in several.choices}) == 3
        alone = await chat.create(**hot, seed=5, response_format={"type": "json_object"}, extra_body={"max_tokens": 30})
        assert alone.choices[0].message.content == several.choices[2].message.content
        texts: dict[int, str] = {}
        async for chunk in await chat.create(**hot, seed=3, n=3, stream=True, extra_body={"guided_regex": "[0-9]{5}"}):
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        assert len(set(texts.values())) == 3
        assert all(re.fullmatch("[0-9]{5}", each) for each in texts.values())

        either = await chat.create(**hot, extra_body={"structured_outputs": {"choice": ["red", "blue"]}})
        assert either.choices[0].message.content in ("red", "blue")
        for choice, names in (
            ("required", {"weather", "stop"}),
            ({"type": "function", "function": {"name": "weather"}}, {"weather"}),
        ):
            answer = await chat.create(
                **hot, seed=2, tools=[WEATHER, STOP], tool_choice=choice, parallel_tool_calls=False
            )
            [call] = answer.choices[0].message.tool_calls
            assert answer.choices[0].finish_reason == "tool_calls"
            assert call.function.name in names
            if call.function.name == "weather":
                Draft202012Validator(PERSON).validate(json.loads(call.function.arguments))
        answer = await chat.create(
            **hot,
            tools=[WEATHER],
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}},
        )
        message = answer.choices[0].message
        Draft202012Validator(PERSON).validate(json.loads(message.content or message.tool_calls[0].function.arguments))

        told = await chat.create(**hot, seed=1, logprobs=True, top_logprobs=2, extra_body={"guided_choice": ["abc"]})
        logprobs = told.choices[0].logprobs.content
        assert b"".join(bytes(each.bytes) for each in logprobs) == b"abc"
        assert all(len(each.top_logprobs) == 2 and each.logprob <= each.top_logprobs[0].logprob for each in logprobs)
        streamed = [
            each
            async for chunk in await chat.create(
                **hot, seed=1, logprobs=True, stream=True, extra_body={"guided_choice": ["abc"]}
            )
            if chunk.choices and chunk.choices[0].logprobs
            for each in chunk.choices[0].logprobs.content
        ]
        assert [each.logprob for each in streamed] == [each.logprob for each in logprobs]

        texts_of = await client.completions.create(
            model="tiny", prompt=["Hello", "a"], n=2, seed=1, temperature=1.5, logprobs=2, max_tokens=4
        )
        assert [each.index for each in texts_of.choices] == [0, 1, 2, 3]
        assert texts_of.usage.completion_tokens == 16
        first = texts_of.choices[0]
        assert len(first.logprobs.tokens) == len(first.logprobs.top_logprobs) == len(first.logprobs.text_offset)
        pieces = await client.completions.create(
            model="tiny", prompt="a", seed=2, temperature=1.5, max_tokens=4, stream=True
        )
        assert "".join([each.choices[0].text async for each in pieces]) == texts_of.choices[3].text

        with pytest.raises(openai.BadRequestError, match="Unknown format") as caught:
            bad = {"type": "string", "format": "nonsense"}
            await chat.create(
                **hot,
                response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": bad}},
            )
        assert caught.value.param == "response_format"
        for given, param in (({"echo": True}, "echo"), ({"suffix": "x"}, "suffix")):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.completions.create(model="tiny", prompt="a", **given)
            assert caught.value.param == param
