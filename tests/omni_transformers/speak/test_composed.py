"""A language model and a voice as one pipeline: the voice speaks while the model writes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from tiny_transformers import checkpoint, speakers
from tiny_transformers.scripted import save_scripted

from omni_core.api import (
    AudioChunk,
    Edge,
    OmniRequest,
    PipelineConfig,
    ReasoningChunk,
    TextChunk,
    compose,
    open_async,
)
from omni_transformers.pipeline import transformers

assert speakers
pytest.importorskip("omni_serve")  # reads calls of tools

CALL = ["<tool_call>", '{"name": "look",', ' "arguments": {}}', "</tool_call>"]
VOICE: dict[str, Any] = {"speech": {"seed": 3, "speed": 1.5}}


def assistant(folder: Path, pieces: list[str], word: str = "") -> PipelineConfig:
    """Return a pipeline that says ``pieces``; ``word``: the model waits before this one at ``folder/door``."""
    template = "{{ messages[0].content }}{% if tools %}<tool_call>{% endif %}{# </think> #}>"
    llm = transformers(str(save_scripted(folder / "llm", template, ">", pieces)))
    if word:
        os.mkfifo(folder / "door")
        [prepare, answer] = llm.stages
        arguments = {**answer.factory_args, "door": str(folder / "door"), "word": word}
        llm = evolve(llm, stages=[prepare, evolve(answer, factory="gated_writer:create_gated", factory_args=arguments)])
    edges = [Edge("llm", "tts", stream=True, keep=True)]
    return compose({"llm": llm, "tts": transformers(str(checkpoint("VitsModel")))}, edges)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("forks")
async def test_the_voice_speaks_before_the_model_has_written_everything(tmp_path: Path) -> None:
    said = ["Hello", " there", ". ", "I am", " late. ", *CALL, "Good", " bye."]
    pieces = ["<think>", "Hm. Well. ", "</think>", *said]
    asked = OmniRequest({"messages": [{"role": "user", "content": "Hi"}]}, VOICE)
    async with asyncio.timeout(120), open_async(assistant(tmp_path, pieces, " late. ")) as pipe:
        events = []
        async for event in pipe.stream(asked):
            if isinstance(event.data, AudioChunk) and not any(isinstance(each.data, AudioChunk) for each in events):
                written = "".join(each.data.text for each in events if isinstance(each.data, TextChunk))
                assert written == "Hello there. I am"
                await asyncio.to_thread((tmp_path / "door").write_text, "open")
            events.append(event)
    final = {event.stage: event.data for event in events if event.final}
    assert final["llm-answer"].text == "".join(said)
    assert any(isinstance(event.data, ReasoningChunk) for event in events)
    async with (
        open_async(transformers(str(checkpoint("VitsModel")))) as pipe,
        pipe.open_request(OmniRequest({"messages": []}, VOICE)) as opened,
    ):
        await opened.send(TextChunk("Hello there. I am late. Good bye."))
        await opened.finish()
        [alone] = (await opened.results()).values()
    np.testing.assert_array_equal(final["tts-speech"].samples, alone.samples)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("forks")
async def test_a_reply_without_a_word_to_say_is_no_sound_and_no_error(tmp_path: Path) -> None:
    asked = OmniRequest({"messages": [{"role": "user", "content": "Hi"}]}, VOICE)
    async with open_async(assistant(tmp_path, CALL)) as pipe:
        found = await pipe.submit(asked)
    assert found["llm-answer"].text == "".join(CALL)
    assert len(found["tts-speech"].samples) == 0
