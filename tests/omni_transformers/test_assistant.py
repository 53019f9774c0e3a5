"""The assistant of three checkpoints: each part answers in it as it does alone, also behind the server."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
import soundfile
from tiny_transformers import checkpoint, frame_recognisers, live, speakers, writers
from tiny_transformers.serving import input_audio, wav
from tiny_transformers.tiny_whisper import tone

from omni_core.api import AsyncPipe, AudioChunk, OmniRequest, TextChunk, open_async
from omni_transformers.pipeline import transformers

assistant = pytest.importorskip("omni_assistant.pipeline")  # not there where this distribution is tested alone
serve = pytest.importorskip("omni_serve")

assert frame_recognisers and speakers and writers  # noqa: PT018
pytestmark = pytest.mark.asyncio(loop_scope="module")
PARTS = {"asr": "Wav2Vec2ForCTC", "llm": "LlamaForCausalLM", "tts": "VitsModel"}
ASKED = {"temperature": 0, "max_new_tokens": 12, "speech": {"seed": 3}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipe(forks: None) -> AsyncIterator[AsyncPipe]:
    folders = {part: str(checkpoint(name)) for part, name in PARTS.items()}
    config = assistant.assistant("none", llm_dtype="float32", **folders)
    async with asyncio.timeout(120), open_async(config) as pipe:
        yield pipe


async def alone(part: str, request: OmniRequest, *texts: str) -> Any:
    """Return what a part answers without the others; ``texts``: its input as a stream."""
    async with asyncio.timeout(60), open_async(transformers(str(checkpoint(PARTS[part])))) as pipe:
        if not texts:
            [found] = (await pipe.submit(request)).values()
            return found
        async with pipe.open_request(request) as opened:
            for text in texts:
                await opened.send(TextChunk(text))
            await opened.finish()
            [found] = (await opened.results()).values()
            return found


def heard(samples: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "audio", "data": wav(samples)}]}


async def test_each_part_answers_as_it_does_alone(pipe: AsyncPipe) -> None:
    recordings = [tone(1.0), tone(1.5, 1)]
    said = [{"role": "system", "content": "Be brief."}, heard(recordings[0]), {"role": "assistant", "content": "Yes?"}]
    found = await pipe.submit(OmniRequest({"messages": [*said, heard(recordings[1])]}, ASKED))
    texts = [(await alone("asr", OmniRequest({"messages": [heard(each)]}))).text for each in recordings]
    assert all(texts)
    messages: list[dict[str, Any]] = [dict(each) for each in said]
    messages[1]["content"] = texts[0]
    messages.append({"role": "user", "content": texts[1]})
    answer = await alone(
        "llm", OmniRequest({"messages": messages}, {"answer": {"temperature": 0, "max_new_tokens": 12}})
    )
    assert found["llm-answer"] == answer
    sound = await alone("tts", OmniRequest({"messages": []}, {"speech": {"seed": 3}}), answer.text)
    assert len(sound.samples)
    np.testing.assert_array_equal(found["tts-speech"].samples, sound.samples)


def client_of(pipe: AsyncPipe) -> openai.AsyncOpenAI:
    from omni_serve_clients import http_client

    app = serve.create_app(pipe, serve.Settings(model="assistant"))
    transport = http_client(app)
    return openai.AsyncOpenAI(
        api_key="none", base_url="http://test/v1", http_client=transport, max_retries=0, timeout=60
    )


async def test_openai_s_client_talks_to_it(pipe: AsyncPipe) -> None:
    client = client_of(pipe)
    question: Any = {"role": "user", "content": [input_audio(tone(1.0))]}
    asking: Any = {"model": "assistant", "messages": [question], "temperature": 0, "max_tokens": 12}
    written = await client.chat.completions.create(**asking)
    spoken = await client.chat.completions.create(
        **asking,
        modalities=["text", "audio"],
        audio={"voice": "default", "format": "wav"},
        extra_body={"speech": {"seed": 3}},
    )
    audio = spoken.choices[0].message.audio
    assert audio is not None
    assert audio.transcript == written.choices[0].message.content
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(audio.data)))
    assert rate == pipe.interface.sample_rate  # type: ignore[union-attr]
    assert len(samples)
    transcript = await client.audio.transcriptions.create(model="assistant", file=("q.wav", wav(tone(1.0))))
    words = {"role": "user", "content": transcript.text}
    assert transcript.text
    again = await client.chat.completions.create(**{**asking, "messages": [words]})
    assert again.choices[0].message.content == written.choices[0].message.content
    aloud = await client.audio.speech.create(model="assistant", voice="default", input="Hello.", response_format="wav")
    assert len(soundfile.read(io.BytesIO(aloud.content))[0])


@pytest.mark.parametrize("architecture", [live.KYUTAI, pytest.param(live.VOXTRAL, marks=pytest.mark.full)])
@pytest.mark.usefixtures("forks")
async def test_a_recogniser_that_hears_sound_as_it_comes(architecture: str) -> None:
    folders = {part: str(checkpoint(name)) for part, name in {**PARTS, "asr": architecture}.items()}
    opening = OmniRequest({"messages": []}, ASKED, ["transcript", "text"])
    sound = tone(1.5)
    async with asyncio.timeout(120), open_async(assistant.assistant("none", **folders)) as pipe:
        found = []
        for size in (4000, len(sound)):
            async with pipe.open_request(opening) as opened:
                for start in range(0, len(sound), size):
                    await opened.send(AudioChunk(sound[start : start + size], 16_000))
                await opened.finish()
                found.append(await opened.results())
        whole = await pipe.submit(OmniRequest({"messages": [heard(sound)]}, ASKED, ["transcript", "text"]))
        words: Any = {"role": "user", "content": whole["asr-listen"].text.strip()}
        written = await pipe.submit(OmniRequest({"messages": [words]}, ASKED, ["text"]))
        several = await pipe.submit(OmniRequest({"messages": [heard(sound), heard(sound)]}, ASKED, ["text"]))
        twice = await pipe.submit(OmniRequest({"messages": [words, words]}, ASKED, ["text"]))
        file = ("q.wav", wav(sound))
        transcript = await client_of(pipe).audio.transcriptions.create(model="assistant", file=file)
    assert words["content"]
    assert found == [whole, whole]
    assert whole["llm-answer"] == written["llm-answer"]
    assert several == twice
    assert transcript.text == whole["asr-listen"].text
