"""Thoughts of a model before its answer, by OpenAI's own client: beside the content, never in it."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest

from omni_serve.response_items import Items

pytestmark = pytest.mark.asyncio(loop_scope="session")

THINK: Any = {"chat_template_kwargs": {"enable_thinking": True}}
TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tones", "messages": [{"role": "user", "content": text}], **more}


async def test_a_chat(client: openai.AsyncOpenAI) -> None:
    plain = await client.chat.completions.create(**said("one two"))
    assert "reasoning_content" not in (plain.choices[0].message.model_extra or {})
    for asked in (THINK, {"enable_thinking": True}):
        answer = await client.chat.completions.create(**said("one two"), extra_body=asked)
        message = answer.choices[0].message
        assert (message.content, message.model_extra) == ("one two", {"reasoning_content": "I am asked"})
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 2


@pytest.mark.parametrize("tools", [[], [TOOL]])
async def test_the_stream_of_a_chat(client: openai.AsyncOpenAI, tools: list[Any]) -> None:
    stream = await client.chat.completions.create(**said("no call", tools=tools, stream=True), extra_body=THINK)
    deltas = [each.choices[0].delta async for each in stream]
    thought = [each.model_extra["reasoning_content"] for each in deltas if each.model_extra]
    assert thought == ["I am ", "asked"]
    assert "".join(each.content or "" for each in deltas) == ("None is needed." if tools else "no call")


async def test_a_response(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="tones", input="one", extra_body=THINK, stream=True)
    events = [each async for each in stream]
    assert [each.type for each in events[2:9]] == [
        "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
        "response.reasoning_text.delta", "response.reasoning_text.done", "response.content_part.done",
        "response.output_item.done",
    ]  # fmt: skip
    final: Any = events[-1]
    thought, message = final.response.output
    assert (thought.type, thought.content[0].text, message.content[0].text) == ("reasoning", "I am asked", "one")
    history = [*final.response.output, {"role": "user", "content": "history"}]
    again = await client.responses.create(model="tones", input=history)
    assert again.output_text == "thought=I am asked assistant=one"
    assert [each.type for each in again.output] == ["message"]


async def test_thoughts_that_come_back(client: openai.AsyncOpenAI, http: httpx2.AsyncClient) -> None:
    before = {"role": "assistant", "content": "one", "reasoning_content": "Hm"}
    messages = [before, {"role": "user", "content": "history"}]
    answer = await http.post("/v1/chat/completions", json={"model": "tones", "messages": messages})
    assert answer.json()["choices"][0]["message"]["content"] == "thought=Hm assistant=one"
    assert "x-omni-ignored" not in answer.headers
    items: Any = [
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "function_call", "call_id": "a", "name": "look_up", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "here"},
        {"role": "user", "content": "history"},
    ]
    response = await client.responses.create(model="tones", input=items)
    assert response.output_text.startswith("thought=Hm")
    unread = Items.read(items, None, lambda name: None, 0)
    assert not any("reasoning_content" in each for each in unread.messages)


async def test_variables_of_the_template_that_are_none(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json=said("one", chat_template_kwargs={"mood": 1}))
    assert answer.headers["x-omni-ignored"] == "chat_template_kwargs.mood"
    near = said("one", chat_template_kwargs={"enable_thinkin": True})
    assert "did you mean 'enable_thinking'" in (await http.post("/v1/chat/completions", json=near)).text
    twice = said("one", enable_thinking=False, **THINK)
    assert (await http.post("/v1/chat/completions", json=twice)).status_code == 400
