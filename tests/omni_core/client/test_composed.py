"""Pipelines made of others: a recogniser, a language model and a voice as one, with streams between them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import part_stages as parts
import pytest
from attrs import evolve

import omni_core as omni
from omni_core.config.compose import Edge, compose
from omni_core.config.schema import EndpointsConfig, PipelineConfig
from omni_core.protocol.outputs import AudioChunk, TextChunk
from omni_testing import PartConformance


def assistant(folder: Path, *, stream: bool = True) -> PipelineConfig:
    speak = Edge("mind", "voice", stream=True, keep=True)
    if not stream:
        speak = Edge("mind", "voice", "part_stages:to_text", keep=True)
    return compose(
        {"ears": parts.ears(), "mind": parts.mind(), "voice": parts.voice()},
        [Edge("ears.write", "mind", "part_stages:to_messages"), speak],
        endpoints=EndpointsConfig(str(folder)),
    )


@pytest.fixture(scope="module")
def pipe() -> Iterator[omni.Pipe]:
    with (
        tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder,
        omni.open(assistant(Path(folder))) as pipe,
    ):
        yield pipe


def check_answers(pipe: omni.Pipe, sounds: list[int]) -> None:
    """Ask with a whole recording, and with one that is spoken while the recogniser listens; ``sounds``: words of each piece."""
    found = pipe.submit(omni.OmniRequest({"samples": [1.0, 2.0]}))
    assert found["mind-decode"].text == "2: w1 w2 "
    assert found["voice-say"].samples.tolist() == [0.5] * 3
    with pipe.open_request() as opened:
        for sample in (1.0, 2.0, 3.0):
            opened.send(AudioChunk(np.array([sample], np.float32), parts.RATE))
        opened.finish()
        events = list(opened)
    texts = [event.data.text for event in events if isinstance(event.data, TextChunk)]
    assert texts == ["3: ", "w1 ", "w2 ", "w3 "]
    assert [len(event.data.samples) for event in events if isinstance(event.data, AudioChunk)] == sounds
    assert {event.stage for event in events if event.final} == {"mind-decode", "voice-say"}


def test_an_assistant_is_its_parts_with_streams_between_them(pipe: omni.Pipe) -> None:
    check_answers(pipe, [1, 1, 1, 1])


def test_an_assistant_may_speak_when_the_text_is_whole(run_folder: Path) -> None:
    with omni.open(assistant(run_folder, stream=False)) as pipe:
        check_answers(pipe, [4])


def test_each_part_sees_its_own_parameters_and_only_what_is_wanted_of_it(pipe: omni.Pipe) -> None:
    def ask(**fields: Any) -> dict[str, Any]:
        return pipe.submit(omni.OmniRequest({"samples": [1.0]}, **fields))

    # `write` is the last part's that has it, the language model's; the recogniser's is `ears_write`.
    assert ask(params={"loud": True})["mind-decode"].text == "1: W1 "
    assert ask(params={"ears_write": {"loud": True}})["mind-decode"].text == "1: W1 "
    loud = ask(params={"write": {"loud": True}}, metadata={"mind_language": "de"})
    assert loud["mind-decode"].text == "1: W1 DE "
    assert loud["voice-say"].samples.tolist() == [0.5] * 3, "the language of the answer is not that of the speech"
    high = ask(metadata={"speaker": "high", "language": "fr"})
    assert high["voice-say"].samples.tolist() == [0.75] * 2
    assert high["mind-decode"].text == "1: w1 "
    assert ask(modalities=["text"]).keys() == {"mind-decode"}
    assert ask(modalities=["audio"]).keys() == {"voice-say"}
    with pytest.raises(omni.InvalidRequestError, match=r"metadata\.mind_langage: .*did you mean 'mind_language'"):
        ask(metadata={"mind_langage": "de"})


async def test_a_part_computes_nothing_of_a_request_that_wants_nothing_of_it(run_folder: Path) -> None:
    async with omni.open_async(assistant(run_folder)) as pipe:
        for modalities in (["text"], ["audio"], ["text"]):
            await pipe.submit(omni.OmniRequest({"samples": [1.0]}, modalities=modalities))
        stages = {name: each for process in (await pipe.statistics()).values() for name, each in process.items()}
    assert (stages["mind-decode"]["completed"], stages["voice-say"]["completed"]) == (3, 1)


async def test_a_part_that_reads_streams_computes_whole_requests_in_parts(run_folder: Path) -> None:
    """As far as they have parts: of a stream there are none."""
    voice = parts.voice()
    [say] = voice.stages
    whole = compose(
        {"mind": parts.mind(), "voice": evolve(voice, stages=[evolve(say, expand_fn="part_stages:each_word")])},
        [Edge("mind", "voice", stream=True)],
    )
    alone = compose({"voice": evolve(voice, stages=[evolve(say, expand_fn="part_stages:each_word")])}, [])
    async with omni.open_async(evolve(alone, endpoints=EndpointsConfig(str(run_folder)))) as pipe:
        found = await pipe.submit(omni.OmniRequest({"text": "one two"}, timeout=20))
    assert {name: len(each.samples) for name, each in found["voice-say"].items()} == {"one": 1, "two": 1}
    async with omni.open_async(evolve(whole, endpoints=EndpointsConfig(str(run_folder)))) as pipe:
        assert len((await pipe.chat("one two", timeout=20)).audio.samples) == 3


async def test_a_part_before_a_pipeline_and_one_behind_it(run_folder: Path) -> None:
    """A guard or a translator: the same pipeline, which knows nothing of it."""
    config = compose(
        {"guard": parts.mind(), "inner": parts.mind()},
        [Edge("guard", "inner", "part_stages:to_messages")],
        endpoints=EndpointsConfig(str(run_folder)),
    )
    async with omni.open_async(config) as pipe:
        assert (await pipe.chat("hi")).text == "2: 1: hi "
        assert [str(piece) async for piece in pipe.chat("hi", stream=True)] == ["2: ", "1: ", "hi "]


class TestMind(PartConformance):
    """Routes, waits, merges and streams by the names that the part knows."""

    @pytest.fixture(autouse=True)
    def _stages(self) -> None:
        self._parts = parts

    def config(self) -> PipelineConfig:
        config: PipelineConfig = self._parts.mind()
        return config

    def requests(self) -> list[omni.OmniRequest]:
        messages = [{"role": "user", "content": text} for text in ("one", "one two three")]
        return [omni.OmniRequest({"messages": [each]}, params={"write": {"loud": True}}) for each in messages]
