"""Models that listen and see, through the server by OpenAI's client: chat with media, and transcriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from tiny_transformers import checkpoint, examples, listeners, seers
from tiny_transformers.serving import ending, image_url, input_audio, served, wav

assert listeners
assert seers
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("forks")]


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
    async with served(ending(name, tmp_path / "tiny", ids[5])) as client:
        asked: Any = [{"role": "user", "content": [input_audio(samples), {"type": "text", "text": prompt}]}]
        answer = await client.chat.completions.create(model="tiny", messages=asked)
        assert answer.choices[0].message.content == text_of(name, ids[: ids.index(ids[5]) + 1])
        assert answer.choices[0].finish_reason == "stop"
        written = await client.audio.transcriptions.create(model="tiny", file=("a.wav", wav(samples)))
        assert written.text == answer.choices[0].message.content
        picture: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
        with pytest.raises(openai.BadRequestError, match="image"):
            await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": [picture]}])


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
