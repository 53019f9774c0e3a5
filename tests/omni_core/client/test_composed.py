"""Pipelines made of others: a recogniser, a language model and a voice as one, with streams between them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_core as omni
from omni_core.config.compose import Edge, compose
from omni_core.config.schema import EndpointsConfig, PipelineConfig
from omni_core.protocol.outputs import AudioChunk, TextChunk
from omni_testing import PartConformance

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def parts() -> Iterator[Any]:
    """The module ``part_stages``, which child processes can import too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE), prepend=":")
        patch.syspath_prepend(HERE)
        yield import_module("part_stages")


def assistant(parts: Any, folder: Path, *, stream: bool = True) -> PipelineConfig:
    speak = Edge("mind", "voice", stream=True, keep=True)
    if not stream:
        speak = Edge("mind", "voice", "part_stages:to_text", keep=True)
    return compose(
        {"ears": parts.ears(), "mind": parts.mind(), "voice": parts.voice()},
        [Edge("ears.write", "mind", "part_stages:to_messages"), speak],
        endpoints=EndpointsConfig(str(folder)),
    )


@pytest.mark.parametrize("stream", [True, False])
async def test_an_assistant_is_its_parts_one_after_another(parts: Any, run_folder: Path, stream: bool) -> None:
    async with omni.open_async(assistant(parts, run_folder, stream=stream)) as pipe:
        request = omni.OmniRequest({"samples": [1.0, 2.0]})
        found = await pipe.submit(request)
        assert found["mind-decode"].text == "2: w1 w2 "
        assert found["voice-say"].samples.tolist() == [0.5] * 3

        async with pipe.open_request() as opened:  # spoken, while the recogniser listens
            for sample in (1.0, 2.0, 3.0):
                await opened.send(AudioChunk(np.array([sample], np.float32), parts.RATE))
            await opened.finish()
            events = [event async for event in opened]
        texts = [event.data.text for event in events if isinstance(event.data, TextChunk)]
        assert texts == ["3: ", "w1 ", "w2 ", "w3 "]
        sounds = [len(event.data.samples) for event in events if isinstance(event.data, AudioChunk)]
        assert sounds == ([1, 1, 1, 1] if stream else [4])
        assert {event.stage for event in events if event.final} == {"mind-decode", "voice-say"}


async def test_each_part_sees_its_own_parameters_and_only_what_is_wanted_of_it(parts: Any, run_folder: Path) -> None:
    async with omni.open_async(assistant(parts, run_folder)) as pipe:

        async def ask(**fields: Any) -> dict[str, Any]:
            return await pipe.submit(omni.OmniRequest({"samples": [1.0]}, **fields))

        # `write` is the last part's that has it, the language model's; the recogniser's is `ears_write`.
        assert (await ask(params={"loud": True}))["mind-decode"].text == "1: W1 "
        assert (await ask(params={"ears_write": {"loud": True}}))["mind-decode"].text == "1: W1 "
        loud = await ask(params={"write": {"loud": True}}, metadata={"mind_language": "de"})
        assert loud["mind-decode"].text == "1: W1 DE "
        assert loud["voice-say"].samples.tolist() == [0.5] * 3, "the language of the answer is not that of the speech"
        high = await ask(metadata={"speaker": "high", "language": "fr"})
        assert high["voice-say"].samples.tolist() == [0.75] * 2
        assert high["mind-decode"].text == "1: w1 "
        assert (await ask(modalities=["text"])).keys() == {"mind-decode"}
        assert (await ask(modalities=["audio"])).keys() == {"voice-say"}
        with pytest.raises(omni.InvalidRequestError, match=r"metadata\.mind_langage: .*did you mean 'mind_language'"):
            await ask(metadata={"mind_langage": "de"})


async def test_a_part_before_a_pipeline_and_one_behind_it(parts: Any, run_folder: Path) -> None:
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
    def _stages(self, parts: Any) -> None:
        self._parts = parts

    def config(self) -> PipelineConfig:
        config: PipelineConfig = self._parts.mind()
        return config

    def requests(self) -> list[omni.OmniRequest]:
        messages = [{"role": "user", "content": text} for text in ("one", "one two three")]
        return [omni.OmniRequest({"messages": [each]}, params={"write": {"loud": True}}) for each in messages]
