"""Everything that the plugin provides keeps its contract, and the echo says what it should."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chat_echo.pipeline import TakeTurns, chat_echo

from omni_core.api import OmniRequest, PipelineConfig, RequestFailedError, Scheduler, open_async
from omni_testing import PipelineConformance, PluginConformance, ProjectionConformance, SchedulerConformance


def saying(text: str) -> OmniRequest:
    return OmniRequest({"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]})


class TestPlugin(PluginConformance):
    entry_point = "chat-echo"


class TestPipeline(PipelineConformance):
    def config(self) -> PipelineConfig:
        return chat_echo("none", pause=0.001)

    def requests(self) -> list[OmniRequest]:
        return [saying("hello"), saying("How are you today, my friend?"), saying("la " * 50)]


class TestProjection(ProjectionConformance):
    projection = "chat_echo.pipeline:words_only"

    def payloads(self) -> list[Any]:
        return [{"words": ["How", "are", "you"], "ending": "?"}]


class TestScheduler(SchedulerConformance):
    def make(self) -> Scheduler:
        return TakeTurns(pause=0.001)

    def good(self, number: int) -> Any:
        return {"words": ["la"] * (number + 1)}

    def bad(self) -> Any:
        return {"words": 7, "but": "no list"}

    def endless(self) -> Any:
        return {"words": ["la"] * 100_000}


async def pieces(client: Any, text: str) -> list[str]:
    """The partial texts of an answer, in order."""
    return [event.data.text async for event in client.stream(saying(text)) if not event.final]


def test_words_are_streamed_and_the_ending_comes_last() -> None:
    async def check() -> None:
        async with open_async(chat_echo("none")) as client:
            assert await pieces(client, "How are you?") == ["You said: How", " are", " you", "?"]
            answer = (await client.submit(saying("How are you?")))["speak"]
            assert (answer.text, answer.usage) == ("You said: How are you?", {"words": 3})

    asyncio.run(check())


def test_a_short_message_overtakes_a_long_one() -> None:
    async def check() -> None:
        async with open_async(chat_echo("none", pause=0.001)) as client:
            long = asyncio.ensure_future(client.submit(saying("la " * 500)))
            await asyncio.sleep(0.05)
            await client.submit(saying("hello"))
            assert not long.done()
            await long

    asyncio.run(check())


def test_silence_is_refused() -> None:
    async def check() -> None:
        async with open_async(chat_echo("none")) as client:
            with pytest.raises(RequestFailedError, match="nothing to say back"):
                await client.submit(saying("?!"))

    asyncio.run(check())
