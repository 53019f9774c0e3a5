"""Semantic Kernel: an agent with a name and a tool, speech and transcriptions."""

from __future__ import annotations

from pathlib import Path

import pytest
from client_voices import recording
from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIAudioToText,
    OpenAIChatCompletion,
    OpenAITextToAudio,
    OpenAITextToAudioExecutionSettings,
)
from semantic_kernel.contents import AudioContent
from semantic_kernel.functions import kernel_function


class Weather:
    """A plugin."""

    @kernel_function
    def weather(self, text: str) -> str:
        """Say what the weather is."""
        return "no call: rain"  # After this the pipeline calls nothing.


@pytest.fixture
def access() -> dict[str, object]:
    return {"ai_model_id": "tones", "async_client": AsyncOpenAI()}


async def test_an_agent(access: dict[str, object]) -> None:
    agent = ChatCompletionAgent(service=OpenAIChatCompletion(**access), name="Assistant", instructions="Be brief.")
    answer = await agent.get_response("history")
    assert str(answer.content) == "system=Be brief."
    pieces = [str(each.content) async for each in agent.invoke_stream("hello there")]
    assert "".join(pieces) == "hello there"


async def test_tools(access: dict[str, object]) -> None:
    agent = ChatCompletionAgent(service=OpenAIChatCompletion(**access), name="Assistant", plugins=[Weather()])
    answer = await agent.get_response("hello there")
    assert str(answer.content) == "None is needed."


async def test_speech_and_transcriptions(access: dict[str, object], tmp_path: Path) -> None:
    settings = OpenAITextToAudioExecutionSettings(response_format="pcm")
    said = await OpenAITextToAudio(**access).get_audio_content("one two three", settings)
    assert len(said.data) / 2 / 24_000 == pytest.approx(0.3, abs=0.01)
    file = tmp_path / "speech.wav"
    file.write_bytes(recording())
    found = await OpenAIAudioToText(**access).get_text_content(AudioContent(uri=str(file)))
    assert found.text.startswith("Write down what is said. audio:")
