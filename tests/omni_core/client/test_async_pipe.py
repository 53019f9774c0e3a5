"""The asynchronous face: what differs from the blocking one, and the arguments of opening."""

from __future__ import annotations

import asyncio
from pathlib import Path

import chat_stages
import pytest
from attrs import evolve

import omni_core as omni
from omni_core.interface import TEXT


async def test_chats_run_side_by_side_and_cancelling_one_aborts_it(run_folder: Path) -> None:
    async with omni.open_async(chat_stages.chat_pipeline(run_folder)) as pipe:
        replies = await asyncio.gather(*(pipe.chat(word) for word in ("a", "b")))
        assert [reply.text for reply in replies] == ["a", "b"]
        stream = pipe.chat("c d", stream=True, modalities=["text"])
        assert [str(piece) async for piece in stream] == ["c ", "d "]
        assert stream.reply.text == "c d"
        begun = pipe.chat("wait " * 400, stream=True)
        await anext(begun)
        await begun.aclose()
        task = asyncio.create_task(pipe.chat("wait " * 400))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await pipe.statistics())["coordinator"]["requests"]["aborted"] == 2
        assert list(pipe.health()) == ["all"]


async def test_a_speech_model_says_a_text(run_folder: Path) -> None:
    interface = evolve(chat_stages.INTERFACE, roles={"vocoder": "say"}, groups=[], outputs=["audio"])
    config = chat_stages.chat_pipeline(run_folder, interface=interface)
    assert TEXT not in interface.roles
    async with omni.open_async(config, request_timeout=30.0) as pipe:
        reply = await pipe.speak("good morning", voice="bert", modalities=["audio"])
        assert reply.audio.seconds == 0.25
        assert reply.text == ""
        assert [type(piece) async for piece in pipe.speak("hi", stream=True, modalities=["audio"])] == [omni.AudioPiece]


async def test_a_pipeline_that_answers_is_asked_to_read_aloud(run_folder: Path) -> None:
    interface = evolve(chat_stages.INTERFACE, prompts={"speech": "Read: {text}"})
    async with omni.open_async(chat_stages.chat_pipeline(run_folder, interface=interface)) as pipe:
        assert (await pipe.speak("good morning")).text == "Read: good morning"


async def test_a_pipeline_that_speaks_given_texts_gets_the_text_as_it_is(run_folder: Path) -> None:
    interface = evolve(chat_stages.INTERFACE, outputs=["text", "audio", "speech"], prompts={})
    assert (interface.speaks_texts, chat_stages.INTERFACE.speaks_texts) == (True, False)
    async with omni.open_async(chat_stages.chat_pipeline(run_folder, interface=interface)) as pipe:
        reply = await pipe.speak("good morning", system="Slowly.")
        assert (reply.text, reply.audio.seconds) == ("", 0.25)  # nothing is written
        with pytest.raises(omni.InvalidRequestError, match="no other modalities"):
            await pipe.speak("good morning", modalities=["audio"])


async def test_wrong_arguments_fail_before_anything_is_started(tmp_path: Path) -> None:
    config = chat_stages.chat_pipeline(tmp_path)
    with pytest.raises(omni.ConfigError, match="retries: must not be negative"):
        omni.open_async(config, retries=-1)
    with pytest.raises(omni.ConfigError, match="request_timeout: must be greater than 0 and finite"):
        omni.open_async(config, request_timeout=0.0)
    with pytest.raises(omni.ConfigError, match="'wrte' is neither a stage nor a pipeline field; did you mean 'write'"):
        omni.open_async(config, set={"wrte.gpu": 0})
    with pytest.raises(omni.PluginError, match="no-such-pipeline"):
        omni.open_async("no-such-pipeline")
    with pytest.raises(TypeError, match="no argument is called 'max_inflight'; did you mean 'max_in_flight'"):
        omni.open_async(config, max_inflight=3)  # type: ignore[call-arg]
    with pytest.raises(omni.ConfigError, match="retries: given twice, here and in set"):
        omni.open_async(config, retries=1, set={"retries": 2})
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("retries: 3\n")
    assert omni.open_async(config, config=overlay).config.retries == 3


async def test_a_request_without_a_timeout_has_the_pipelines(run_folder: Path) -> None:
    async with omni.open_async(chat_stages.chat_pipeline(run_folder), request_timeout=0.2) as pipe:
        with pytest.raises(omni.RequestTimeoutError):
            await pipe.chat("wait " * 400)
        assert (await pipe.chat("wait " * 20, timeout=30.0)).text
