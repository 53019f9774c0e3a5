"""LiveKit's openai plugin: its speech, language and transcription models, its realtime and live sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
from client_voices import KEY, pcm, program, voice
from livekit import rtc
from livekit.agents import Agent, function_tool, llm, stt
from livekit.agents.utils import http_context
from livekit.plugins import openai
from openai.types.realtime import AudioTranscription

pytestmark = pytest.mark.asyncio(loop_scope="session")

RATE = 24_000
FRAME = RATE // 10


@function_tool
async def weather(text: str) -> str:
    """Say what the weather is."""
    return "rain"


@pytest.fixture
def access(address: str) -> dict[str, Any]:
    return {"model": "tones", "base_url": f"http://{address}/v1", "api_key": KEY}


@pytest_asyncio.fixture(loop_scope="session")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def frames(samples: npt.NDArray[np.float32]) -> list[rtc.AudioFrame]:
    pieces = (samples[start : start + FRAME] for start in range(0, len(samples), FRAME))
    return [rtc.AudioFrame(pcm(each), RATE, 1, len(each)) for each in pieces]


def context(text: str, role: llm.ChatRole = "user") -> llm.ChatContext:
    made = llm.ChatContext.empty()
    made.add_message(role=role, content=text)
    return made


@pytest.mark.parametrize(
    ("model", "form"), [("tts-1", "mp3"), ("tones", "mp3"), ("tones", "wav"), ("tones", "pcm"), ("tones", "opus")]
)
async def test_speech(access: dict[str, Any], model: str, form: str) -> None:
    """It asks for events, but of ``tts-1`` for bytes."""
    speech = openai.TTS(**{**access, "model": model}, voice="low", response_format=form)
    frame = await speech.synthesize("one two three").collect()
    await speech.aclose()
    assert frame.sample_rate == RATE
    assert frame.duration == pytest.approx(0.3, abs=0.06)  # a tenth of a second a word; codecs add their own


async def test_chats_and_tools(access: dict[str, Any]) -> None:
    """Its tools are strict by default."""
    model = openai.LLM(**access)
    said = await model.chat(chat_ctx=context("hello there")).collect()
    greeted = await model.chat(chat_ctx=context("Greet the user.", "system")).collect()
    called = await model.chat(chat_ctx=context("hello there"), tools=[weather]).collect()
    await model.aclose()
    assert greeted.text == "Greet the user."
    assert said.text == "hello there"
    assert said.usage is not None
    assert said.usage.completion_tokens == 2
    (call,) = called.tool_calls
    assert (called.text, call.name, call.arguments) == ("So:", "weather", '{"text": "hello there"}')


async def test_transcriptions(access: dict[str, Any]) -> None:
    model = openai.STT(**access, use_realtime=False)
    found = await model.recognize(frames(voice(0.8)))
    await model.aclose()
    assert "Write down what is said." in found.alternatives[0].text


async def test_transcriptions_of_a_stream(access: dict[str, Any]) -> None:
    """A session that only transcribes, which is its default."""
    model = openai.STT(**access)
    async with http_context.open(), model.stream() as stream, asyncio.timeout(30):
        for each in frames(voice(0.8)):
            stream.push_frame(each)
        async for event in stream:
            if event.type is stt.SpeechEventType.FINAL_TRANSCRIPT:
                assert event.alternatives[0].text.startswith("Write down")
                break
    await model.aclose()


async def test_interim_transcripts(hearing: str) -> None:
    """Words are shown while the user speaks, and the final transcript begins with them."""
    model = openai.STT(model="hear", base_url=f"http://{hearing}/v1", api_key=KEY, language="en")
    interim = ""
    async with http_context.open(), model.stream() as stream, asyncio.timeout(30):
        for each in frames(voice(1.6)[: -int(0.9 * RATE)]):
            stream.push_frame(each)
        async for event in stream:
            if event.type is stt.SpeechEventType.INTERIM_TRANSCRIPT and not interim:
                interim = event.alternatives[0].text
                for each in frames(np.zeros(RATE, np.float32)):
                    stream.push_frame(each)
            elif event.type is stt.SpeechEventType.FINAL_TRANSCRIPT:
                assert event.alternatives[0].text.startswith(interim)
                break
    await model.aclose()
    assert interim.startswith("en1")


async def heard(generation: llm.GenerationCreatedEvent) -> tuple[str, float, list[str]]:
    """Return the text, the seconds of speech and the names of the tools that are called."""
    text, seconds = "", 0.0
    async for message in generation.message_stream:
        text += "".join([each async for each in message.text_stream])
        seconds += sum([frame.duration async for frame in message.audio_stream])
    return text, seconds, [call.name async for call in generation.function_stream]


async def test_a_realtime_session(access: dict[str, Any], http: aiohttp.ClientSession) -> None:
    """A greeting, a spoken turn that is written down, earlier messages, a tool; no event is an error."""
    model = openai.realtime.RealtimeModel(
        **access,
        voice="low",
        http_session=http,
        input_audio_transcription=AudioTranscription(model="tones"),
    )
    session = model.session()
    events: dict[str, asyncio.Queue[Any]] = {}
    for name in ("generation_created", "input_audio_transcription_completed", "error"):
        events[name] = asyncio.Queue()
        session.on(name, events[name].put_nowait)
    async with asyncio.timeout(60):
        await session.update_instructions("Be brief.")
        text, seconds, _ = await heard(await session.generate_reply(instructions="Greet the user."))
        assert text == "Be brief. Greet the user."
        assert seconds == pytest.approx(0.5, abs=0.02)
        assert (await events["generation_created"].get()).user_initiated
        for each in frames(voice(0.8)):
            session.push_audio(each)
        text, seconds, _ = await heard(await events["generation_created"].get())
        assert "audio:" in text
        assert seconds > 0.1
        while not (written := await events["input_audio_transcription_completed"].get()).is_final:
            assert "Write down what is said.".startswith(written.transcript[:20])
        assert written.transcript.startswith("Write down")
        changed = session.chat_ctx.copy()
        changed.add_message(role="user", content="hello tools")
        await session.update_chat_ctx(changed)
        await session.update_tools([weather])
        text, _, calls = await heard(await session.generate_reply())
        assert (text, calls) == ("So:", ["weather"])
    await session.aclose()
    assert events["error"].empty()


async def test_a_live_session(access: dict[str, Any], http: aiohttp.ClientSession) -> None:
    model = openai.realtime.GPTLiveModel(**access, voice="low", http_session=http, delegation="client")
    session = model.session()
    errors: list[Any] = []
    session.on("error", errors.append)
    async with asyncio.timeout(60):
        await session._update_session(instructions="Be brief.")  # as an agent does when it begins
        for each in frames(voice(0.8)):
            session.push_audio(each)
        seconds = 0.0
        async for each in session.audio_stream:
            seconds += each.frame.duration
            if seconds > 0.15:
                break
    await session.aclose()
    assert errors == []


async def test_the_program_of_the_page(address: str) -> None:
    """Its session, without a room."""
    said: asyncio.Queue[Any] = asyncio.Queue()
    async with http_context.open(), asyncio.timeout(60):
        session = program("LiveKit", address)["conversation"]()
        session.on("conversation_item_added", said.put_nowait)
        await session.start(Agent(instructions="Be brief."))
        session.generate_reply(instructions="Greet the user.")
        while (item := (await said.get()).item).type != "message":
            pass
        await session.aclose()
    assert (item.role, item.text_content) == ("assistant", "Be brief. Greet the user.")
