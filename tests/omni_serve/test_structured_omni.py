"""Structured answers of Qwen's omni models with random weights, in text and in speech, by OpenAI's client."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from omni_serve_clients import http_client

from omni_core import open_async
from omni_serve import Settings, create_app

pytestmark = pytest.mark.asyncio(loop_scope="module")
pytest.importorskip("llguidance")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{2}$"}},
    "required": ["city"],
}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {**CITY, "additionalProperties": False}},
}


def qwen3(folder: Path) -> Any:
    from omni_qwen3.pipeline import qwen3_omni
    from omni_testing.tiny.qwen3 import write_tiny_checkpoint

    return qwen3_omni(str(write_tiny_checkpoint(folder)), processes="one")


def qwen25(folder: Path) -> Any:
    from omni_qwen25.pipeline import qwen25_omni
    from omni_testing.tiny.qwen25 import write_tiny_checkpoint

    return qwen25_omni(str(write_tiny_checkpoint(folder)), processes="one")


@pytest.mark.full
@pytest.mark.parametrize("family", [qwen3, qwen25])
async def test_answers_in_text_and_speech_are_what_is_asked_for(family: Any, tmp_path: Path) -> None:
    short: Any = {"stage_sampling": {"talker": {"max_new_tokens": 20}}}
    asked: Any = {"model": "qwen", "messages": [{"role": "user", "content": "Where?"}], "temperature": 1.3, "seed": 4}
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": WEATHER["function"]["parameters"]}}
    async with open_async(family(tmp_path / "tiny")) as pipe:
        app = create_app(pipe, Settings(model="qwen"))
        client = openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http_client(app))
        chat = client.chat.completions
        written = await chat.create(**asked, response_format=form, logprobs=True, top_logprobs=1)
        text = written.choices[0].message.content
        assert re.fullmatch("[A-Z][a-z]{2}", json.loads(text)["city"])
        assert b"".join(bytes(each.bytes) for each in written.choices[0].logprobs.content).decode() == text
        spoken: Any = {"modalities": ["text", "audio"], "audio": {"voice": "default", "format": "pcm16"}}
        said = (await chat.create(**asked, response_format=form, **spoken, extra_body=short)).choices[0].message
        assert re.fullmatch("[A-Z][a-z]{2}", json.loads(said.audio.transcript)["city"])
        assert said.audio.data
        if pipe.config.interface.tool_format is not None:
            for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
                answer = (
                    await chat.create(**asked, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)
                ).choices[0]
                [call] = answer.message.tool_calls
                assert re.fullmatch("[A-Z][a-z]{2}", json.loads(call.function.arguments)["city"])
        prompt = "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n"
        raw = await client.completions.create(model="qwen", prompt=prompt, max_tokens=5, seed=4, temperature=1.3)
        same = await chat.create(**asked, max_tokens=5)
        if family is qwen3:  # the other one's template begins with a system message
            assert raw.choices[0].text == same.choices[0].message.content
            assert raw.usage.prompt_tokens == same.usage.prompt_tokens
