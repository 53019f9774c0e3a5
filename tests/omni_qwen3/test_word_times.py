"""The times of words, which the talker does not know: by an aligner behind the sound, of the text that was spoken."""

from __future__ import annotations

import base64
from typing import Any

import openai
import pytest
from omni_serve_clients import http_client, running_server
from tiny_transformers import checkpoint, frame_recognisers

from omni_core.api import WORD_TIMES
from omni_core.client import open_async
from omni_qwen3.pipeline import qwen3_omni
from omni_serve import Settings, create_app
from omni_testing.ours.checkpoints import tiny_checkpoint

assert frame_recognisers


def test_the_interface_declares_what_the_aligner_adds() -> None:
    plain, aligned = qwen3_omni(tiny_checkpoint("qwen3")), qwen3_omni(tiny_checkpoint("qwen3"), aligner="folder")
    assert plain.interface is not None
    assert aligned.interface is not None
    assert not plain.interface.word_times
    assert aligned.interface.word_times
    assert WORD_TIMES in aligned.interface.params
    assert (plain.terminal_stages, aligned.terminal_stages) == (["decode", "code2wav"], ["decode", "align"])


@pytest.mark.full
@pytest.mark.asyncio
async def test_the_sdk_gets_words_whole_and_in_a_session() -> None:
    config = qwen3_omni(tiny_checkpoint("qwen3"), processes="one", aligner=str(checkpoint("Wav2Vec2ForCTC")))
    params: Any = {"seed": 1, "stage_sampling": {"thinker": {"max_new_tokens": 6}, "talker": {"max_new_tokens": 40}}}
    async with open_async(config) as pipe:
        app = create_app(pipe, Settings(model="omni"))
        async with http_client(app) as http:
            client = openai.AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=http)
            given: Any = {"model": "omni", "voice": "ethan", "input": "Good day", "response_format": "pcm"}
            told = (
                await client.audio.speech.create(**given, extra_body={**params, "timestamps": "word"})
            ).response.json()
            plain = await client.audio.speech.create(**given, extra_body=params)
            assert base64.b64decode(told["audio"]) == plain.content
            assert [each["start"] <= each["end"] <= told["duration"] for each in told["words"]] == [True] * len(
                told["words"]
            )
            assert told["words"]
            chat: Any = {"model": "omni", "messages": [{"role": "user", "content": "Hello"}], "extra_body": params}
            assert (await client.chat.completions.create(**chat)).choices[0].message.content, (
                "text alone is not aligned"
            )
        async with running_server(app) as address:
            sdk = openai.AsyncOpenAI(api_key="x", base_url=f"http://{address}/v1", max_retries=0)
            async with sdk.realtime.connect(model="omni") as connection:
                session: Any = {"type": "realtime", **params, "audio": {"output": {"timestamps": "word"}}}
                await connection.session.update(session=session)
                item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
                await connection.conversation.item.create(item=item)
                await connection.response.create()
                kinds: list[str] = []
                while not kinds or kinds[-1] != "response.done":
                    kinds.append((await connection.recv()).type)
    assert "response.output_audio.words" in kinds
