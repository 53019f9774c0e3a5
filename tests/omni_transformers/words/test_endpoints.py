"""Models that listen and see, through the server by OpenAI's client: chat with media, and transcriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from tiny_transformers import (
    MAKERS,
    causal,
    checkpoint,
    examples,
    further_seers,
    late_seers,
    listeners,
    omnis,
    seers,
    writers,
)
from tiny_transformers.scripted import save_scripted
from tiny_transformers.serving import ending, image_url, input_audio, served, wav

from omni_transformers.architectures import table
from omni_transformers.loading import load_processor
from omni_transformers.words.messages import rate_of
from omni_transformers.words.recognisers import RECOGNISERS

assert all((further_seers, late_seers, listeners, omnis, seers, writers))
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("forks")]

NAMES = [name for name in dict.fromkeys([*MAKERS, *causal.CONFIGS]) if table()[name].kind == "words"]


def cases(names: list[str], always: str) -> list[object]:
    """Return names as parameters of a test; each run has one of them."""
    return [pytest.param(name, id=name, marks=[] if name == always else [pytest.mark.full]) for name in names]


def text_of(folder: Path, ids: list[int]) -> str:
    """Return the text of tokens."""
    processor = load_processor(str(folder))
    text: str = getattr(processor, "tokenizer", processor).decode(ids, skip_special_tokens=True)
    return text


@pytest.mark.parametrize(
    "name", cases([name for name in NAMES if name not in RECOGNISERS], "LlavaForConditionalGeneration")
)
async def test_a_message_is_answered_as_by_generate(name: str) -> None:
    folder = checkpoint(name) if name in MAKERS else causal.checkpoint(name)
    rate = rate_of(load_processor(str(folder)))
    text = {"type": "text", "text": examples.TEXTS.get(name, "What?")}
    sent = {
        "image": lambda: image_url(examples.media("image")),
        "audio": lambda: input_audio(examples.media("audio"), rate),
    }
    async with served(folder) as client:
        for kind in [each for each in table()[name].inputs if each in sent] or ["text"]:
            parts = [text] if kind == "text" else [sent[kind](), text]
            asked: Any = [{"role": "user", "content": parts}]
            answer = await client.chat.completions.create(model="tiny", messages=asked, max_tokens=examples.TOKENS)
            content = [text] if kind == "text" else [examples.part(kind, 0, rate), text]
            ids = examples.reference(name, content, folder)
            assert answer.choices[0].message.content == text_of(folder, ids)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == len(ids)


@pytest.mark.parametrize("name", cases([*RECOGNISERS], "GlmAsrForConditionalGeneration"))
async def test_a_recording_is_written_down_as_by_generate(name: str, tmp_path: Path) -> None:
    samples, rate = examples.media("audio"), rate_of(load_processor(str(checkpoint(name))))
    ids = examples.reference_transcript_ids(name, samples)
    folder, ids = ending(name, tmp_path / "tiny", 258, ids[5]), ids[: ids.index(ids[5]) + 1]
    async with served(folder) as client:
        written = await client.audio.transcriptions.create(model="tiny", file=("a.wav", wav(samples, rate)))
    assert written.text == text_of(folder, ids) != ""


async def test_a_listener_answers_and_writes_down(tmp_path: Path) -> None:
    name, samples, prompt = (
        "Qwen2AudioForConditionalGeneration",
        examples.media("audio"),
        "Transcribe the audio into text.",
    )
    ids = examples.reference(name, [examples.part("audio"), {"type": "text", "text": prompt}])
    async with served(ending(name, tmp_path / "tiny", 258, ids[5])) as client:
        asked: Any = [{"role": "user", "content": [input_audio(samples), {"type": "text", "text": prompt}]}]
        answer = await client.chat.completions.create(model="tiny", messages=asked)
        assert answer.choices[0].message.content == text_of(checkpoint(name), ids[: ids.index(ids[5]) + 1])
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
    name = "LlavaForConditionalGeneration"
    async with served(checkpoint(name)) as client:
        asked: Any = [
            {
                "role": "user",
                "content": [image_url(examples.media("image")), {"type": "text", "text": "What?"}],
            }
        ]
        answer = await client.chat.completions.create(model="tiny", messages=asked, max_tokens=examples.TOKENS)
    ids = examples.reference(name, [examples.part("image"), {"type": "text", "text": "What?"}])
    assert answer.choices[0].message.content == text_of(checkpoint(name), ids)


@pytest.mark.full
async def test_a_recogniser_writes_down(tmp_path: Path) -> None:
    name, samples = "GlmAsrForConditionalGeneration", examples.media("audio")
    ids = examples.reference_transcript_ids(name, samples)
    expected = text_of(checkpoint(name), ids[: ids.index(ids[5]) + 1])
    async with served(ending(name, tmp_path / "tiny", 258, ids[5])) as client:
        file = ("a.wav", wav(samples))
        text = await client.audio.transcriptions.create(model="tiny", file=file, response_format="text")
        stream = await client.audio.transcriptions.create(model="tiny", file=file, stream=True)
        events = [each async for each in stream]
        with pytest.raises(openai.APIStatusError, match="cut by a limit"):
            await client.audio.transcriptions.create(model="tiny", file=file, extra_body={"max_new_tokens": "2"})
    assert text.removesuffix("\n") == expected
    assert "".join(each.delta for each in events if each.type == "transcript.text.delta") == expected
