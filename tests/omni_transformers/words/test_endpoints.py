"""Models that listen and see, through the server by OpenAI's client: chat with media, and transcriptions."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from omni_serve_clients import http_client
from PIL import Image
from tiny_transformers import checkpoint, examples, listeners, seers
from tiny_transformers.scripted import save_scripted

from omni_core import open_async
from omni_serve import Settings, create_app
from omni_transformers.pipeline import transformers

assert listeners
assert seers
pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a server of a checkpoint."""
    async with open_async(transformers(str(folder))) as pipe:
        app = create_app(pipe, Settings(model="tiny"))
        yield openai.AsyncOpenAI(
            api_key="none", base_url="http://test/v1", http_client=http_client(app), max_retries=0, timeout=120
        )


def ending(name: str, folder: Path, token: int) -> Path:
    """Return an architecture's checkpoint whose texts end with a token: random weights end none, and what is cut is no transcript."""
    shutil.copytree(checkpoint(name), folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, token], "pad_token_id": 256}))
    return folder


def wav(samples: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV", subtype="FLOAT")
    return file.getvalue()


def text_of(name: str, ids: list[int]) -> str:
    """Return the text of tokens."""
    text: str = examples.load_processor(str(checkpoint(name))).tokenizer.decode(ids, skip_special_tokens=True)
    return text


async def test_a_listener_answers_and_writes_down(tmp_path: Path) -> None:
    name, samples, prompt = (
        "Qwen2AudioForConditionalGeneration",
        examples.media("audio"),
        "Transcribe the audio into text.",
    )
    ids = examples.reference(name, [examples.part("audio"), {"type": "text", "text": prompt}])
    sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(samples)).decode(), "format": "wav"}}
    async with served(ending(name, tmp_path / "tiny", ids[5])) as client:
        asked: Any = [{"role": "user", "content": [sound, {"type": "text", "text": prompt}]}]
        answer = await client.chat.completions.create(model="tiny", messages=asked)
        assert answer.choices[0].message.content == text_of(name, ids[: ids.index(ids[5]) + 1])
        assert answer.choices[0].finish_reason == "stop"
        written = await client.audio.transcriptions.create(model="tiny", file=("a.wav", wav(samples)))
        assert written.text == answer.choices[0].message.content
        picture: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
        with pytest.raises(openai.BadRequestError, match="image"):
            await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": [picture]}])


async def test_thoughts_and_calls_of_tools(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}{% if tools %}<tool_call>{% endif %}{# </think> #}>"
    call = ["<tool_call>", '{"name": "look",', ' "arguments": {}}', "</tool_call>"]
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    asked: Any = [{"role": "user", "content": "Hi"}]
    async with served(save_scripted(tmp_path, template, ">", ["<think>", "Hm", "</think>", "So:", *call])) as client:
        answer = await client.chat.completions.create(model="tiny", messages=asked, tools=[tool])
        stream = await client.chat.completions.create(model="tiny", messages=asked, tools=[tool], stream=True)
        deltas = [each.choices[0].delta async for each in stream]
    message = answer.choices[0].message
    assert (message.content, message.model_extra) == ("So:", {"reasoning_content": "Hm"})
    assert answer.choices[0].finish_reason == "tool_calls"
    assert [each.function.name for each in message.tool_calls or ()] == ["look"]  # type: ignore[union-attr]
    assert "".join(each.content or "" for each in deltas) == "So:"
    assert [each.model_extra["reasoning_content"] for each in deltas if each.model_extra] == ["Hm"]


@pytest.mark.full
async def test_a_seer_answers() -> None:
    name, pixels = "LlavaForConditionalGeneration", examples.media("image")
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    async with served(checkpoint(name)) as client:
        asked: Any = [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}],
            }
        ]
        answer = await client.chat.completions.create(model="tiny", messages=asked, max_tokens=examples.TOKENS)
    ids = examples.reference(name, [examples.part("image"), {"type": "text", "text": "What?"}])
    assert answer.choices[0].message.content == text_of(name, ids)


@pytest.mark.full
async def test_a_recogniser_writes_down(tmp_path: Path) -> None:
    name, samples = "GlmAsrForConditionalGeneration", examples.media("audio")
    ids = examples.reference_transcript_ids(name, samples)
    expected = text_of(name, ids[: ids.index(ids[5]) + 1])
    async with served(ending(name, tmp_path / "tiny", ids[5])) as client:
        file = ("a.wav", wav(samples))
        text = await client.audio.transcriptions.create(model="tiny", file=file, response_format="text")
        stream = await client.audio.transcriptions.create(model="tiny", file=file, stream=True)
        events = [each async for each in stream]
        with pytest.raises(openai.APIStatusError, match="cut by a limit"):
            await client.audio.transcriptions.create(model="tiny", file=file, extra_body={"max_new_tokens": "2"})
    assert text.removesuffix("\n") == expected
    assert "".join(each.delta for each in events if each.type == "transcript.text.delta") == expected
