"""Pydantic AI: agents by chat and by responses."""

from __future__ import annotations

from typing import Literal

import pytest
from client_voices import recording
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput

both = pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])


@both
async def test_agents_and_streams(api: str) -> None:
    agent = Agent(f"{api}:tones", instructions="Be brief.")
    result = await agent.run("history")
    assert result.output == "system=Be brief."
    async with agent.run_stream("hello there") as stream:
        assert "".join([each async for each in stream.stream_text(delta=True)]) == "hello there"


@both
async def test_tools(api: str) -> None:
    agent = Agent(f"{api}:tones")
    heard = []

    @agent.tool_plain
    def weather(text: str) -> str:
        """Say what the weather is."""
        heard.append(text)
        return "no call: rain"  # After this the pipeline calls nothing.

    result = await agent.run("hello there")
    assert (result.output, heard) == ("None is needed.", ["hello there"])


class Place(BaseModel):
    """A place."""

    city: str
    size: Literal["large", "small"]
    people: list[int]


@both
async def test_an_output_of_a_type(api: str) -> None:
    result = await Agent(f"{api}:tones", output_type=NativeOutput(Place)).run("where")
    assert result.output == Place(city="one", size="large", people=[3])


async def test_sound() -> None:
    asked = ["listen", BinaryContent(recording(), media_type="audio/wav")]
    result = await Agent("openai-chat:tones").run(asked)
    assert [each.partition(":")[0] for each in result.output.split()] == ["listen", "audio"]
