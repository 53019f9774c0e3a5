"""Chat completions, by OpenAI's own client."""

from __future__ import annotations

import base64

import openai
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_text_answer(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="tones", messages=[{"role": "user", "content": "one two"}])
    assert answer.choices[0].message.content == "one two"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 2, 4)
    assert answer._request_id is not None


async def test_a_spoken_answer(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tones",
        messages=[{"role": "user", "content": "one two"}],
        modalities=["text", "audio"],
        audio={"voice": "high", "format": "pcm16"},
    )
    audio = answer.choices[0].message.audio
    assert answer.choices[0].message.content is None
    assert audio is not None
    assert audio.transcript == "one two"
    assert len(base64.b64decode(audio.data)) == 2 * (2400 + 3) * 2
