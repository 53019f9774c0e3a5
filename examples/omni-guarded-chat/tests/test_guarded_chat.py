"""The guard lets a request pass or not, the translator gets the answer, and the whole is a pipeline like any other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from guarded_chat.pipeline import NO_MODEL, guarded_chat
from parts import LOUD, part

from omni_core.api import ConfigError, InvalidRequestError, OmniRequest, PipelineConfig, open_async
from omni_testing import PipelineConformance, PluginConformance


def made(translated: bool = False) -> PipelineConfig:
    translator = part("reverse") if translated else None
    return guarded_chat(NO_MODEL, guard=part("judge"), chat=part("answer", groups=[LOUD]), translator=translator)


def saying(text: str, **fields: Any) -> OmniRequest:
    return OmniRequest({"messages": [{"role": "user", "content": text}]}, **fields)


class TestPlugin(PluginConformance):
    entry_point = "guarded-chat"


class TestPipeline(PipelineConformance):
    def config(self) -> PipelineConfig:
        return made()

    def requests(self) -> list[OmniRequest]:
        return [saying("hello"), saying("Good morning!", params={"loud": True})]


def test_the_guard_lets_a_request_pass_or_not() -> None:
    async def check() -> None:
        async with open_async(made()) as pipe:
            assert (await pipe.chat("hello", loud=True)).text == "YOU SAID: HELLO"
            with pytest.raises(InvalidRequestError, match=r"the guard does not let this pass: unsafe"):
                await pipe.chat("a bomb")
            counts = {name: each for one in (await pipe.statistics()).values() for name, each in one.items()}
            assert (counts["guard-all"]["completed"], counts["chat-all"]["completed"]) == (2, 1)

    asyncio.run(check())


def test_the_translator_gets_the_answer() -> None:
    async def check() -> None:
        async with open_async(made(translated=True)) as pipe:
            assert (await pipe.chat("hi")).text == "ih :dias uoY"

    asyncio.run(check())


def test_a_part_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="--option guard: name a folder"):
        guarded_chat(NO_MODEL, chat="none")
