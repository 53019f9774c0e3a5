"""Tools of Qwen3-Omni from end to end: the chat template, the stages, the server, OpenAI's client."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from attrs import evolve
from omni_serve_clients import http_client

from omni_core import AsyncPipe, open_async
from omni_qwen3.pipeline import qwen3_omni
from omni_serve import Settings, create_app
from omni_testing.tiny.qwen3 import write_tiny_checkpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
QUESTION: Any = {"role": "user", "content": "Does it rain in Köln?"}
SPOKEN: Any = {"modalities": ["text", "audio"], "audio": {"voice": "ethan", "format": "pcm16"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(pipe: AsyncPipe, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[openai.AsyncOpenAI]:
    """Qwen3-Omni with a scripted thinker, served. (``pipe`` lets processes import the tests' stages.)"""
    folder = write_tiny_checkpoint(Path(tmp_path_factory.mktemp("qwen")) / "tiny")
    config = qwen3_omni(str(folder), processes="one")
    runner = "scripted_thinker:ScriptedThinker.from_checkpoint"
    stages = [each if each.name != "thinker" else evolve(each, model_runner=runner) for each in config.stages]
    async with open_async(evolve(config, stages=stages)) as own:
        app = create_app(own, Settings(model="qwen"))
        yield openai.AsyncOpenAI(
            api_key="none", base_url="http://test/v1", http_client=http_client(app), max_retries=0, timeout=60
        )


async def ask(client: openai.AsyncOpenAI, *messages: Any, **options: Any) -> Any:
    params: Any = {"extra_body": {"stage_sampling": {"talker": {"max_new_tokens": 20}}}} if "audio" in options else {}
    answer = await client.chat.completions.create(model="qwen", messages=list(messages), **options, **params)
    return answer.choices[0]


async def test_a_call_and_its_result(client: openai.AsyncOpenAI) -> None:
    assert (await ask(client, QUESTION)).message.content == "None is known."
    choice = await ask(client, QUESTION, tools=[WEATHER])
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Köln"}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "no rain"}
    told = await ask(client, QUESTION, choice.message.model_dump(exclude_none=True), result, tools=[WEATHER])
    assert (told.message.content, told.message.tool_calls, told.finish_reason) == ("It says no rain", None, "stop")


async def test_a_stream_and_a_response(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="qwen", messages=[QUESTION], tools=[WEATHER]) as stream:
        choice: Any = (await stream.get_final_completion()).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Köln"}
    tool: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
    answer = await client.responses.create(model="qwen", input=QUESTION["content"], tools=[tool])
    assert [item.type for item in answer.output] == ["message", "function_call"]


async def test_a_forced_call(client: openai.AsyncOpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    for options in ({}, SPOKEN):
        choice = await ask(client, QUESTION, tools=[WEATHER], tool_choice=named, **options)
        assert (choice.finish_reason, choice.message.content, choice.message.audio) == ("tool_calls", None, None)
        assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Bonn"}


@pytest.mark.skipif(find_spec("llguidance") is None, reason="an extra of omni-torch")
async def test_answers_in_text_and_speech_are_held_to_what_is_asked_for(client: openai.AsyncOpenAI) -> None:
    city: Any = {"type": "object", "properties": {"city": {"enum": ["Rom", "Köln"]}}, "required": ["city"]}
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "city", "schema": {**city, "additionalProperties": False}},
    }
    for options in ({"logprobs": True, "top_logprobs": 1}, SPOKEN):
        choice = await ask(client, QUESTION, response_format=form, temperature=1.3, seed=4, **options)
        text = choice.message.content or choice.message.audio.transcript
        assert json.loads(text)["city"] in ("Rom", "Köln")
        if choice.logprobs is not None:
            assert b"".join(bytes(each.bytes) for each in choice.logprobs.content).decode() == text
        else:
            assert choice.message.audio.data


async def test_calls_are_not_spoken(client: openai.AsyncOpenAI) -> None:
    """The text that the talker gets, to the token, is in tests/omni_qwen3/test_tool_calls.py."""
    with_call = (await ask(client, QUESTION, tools=[WEATHER], seed=3, **SPOKEN)).message
    assert (with_call.audio.transcript, len(with_call.tool_calls)) == ("I look.", 1)
    assert len(base64.b64decode(with_call.audio.data)) > 0
