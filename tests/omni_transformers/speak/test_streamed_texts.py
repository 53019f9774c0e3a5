"""Every model that speaks, with a text that is still being written: the same sound for every cut, alone and beside others."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_transformers import checkpoint, speakers, speakers_by_frame
from tiny_transformers.driving import replies, running, say, send, write

from omni_core.api import (
    InvalidRequestError,
    OmniRequest,
    PipelineConfig,
    RequestTooLargeError,
    Scheduler,
    TextChunk,
)
from omni_testing import PipelineConformance
from omni_transformers.checkpoints import read
from omni_transformers.pipeline import transformers
from omni_transformers.speak.declaration import SPEAKERS, interface, stages
from omni_transformers.speak.speaker import sentences
from omni_transformers.speak.stage import create_speaker
from omni_transformers.speak.written import MOST_UNSPOKEN

assert speakers and speakers_by_frame  # noqa: PT018
FEW = ("VitsModel", "SpeechT5ForTextToSpeech", "CsmForConditionalGeneration")
ALL = [pytest.param(name, marks=() if name in FEW else pytest.mark.full) for name in SPEAKERS]
BY_FRAME = ("Csm", "Dia", "Higgs", "PocketTTS", "Gradium", "VibeVoice")
"""Speak each sentence as a text of its own, with the seed of the request."""
TEXT = "Hello there. This is a second sentence, which has some more words. Yes."


def opened(architecture: str, **arguments: Any) -> Scheduler:
    folder = checkpoint(architecture)
    source = read(str(folder))
    [stage] = stages(source, source.given)
    return create_speaker(str(folder), **{**stage.factory_args, **arguments})


def begin(scheduler: Scheduler, name: str, seed: int = 3, **fields: Any) -> None:
    send(scheduler, name, evolve(OmniRequest({"messages": []}, {"speech": {"seed": seed}}), **fields))


def heard(scheduler: Scheduler, *names: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the sounds of requests, whose streams are equal to their results. Raises the error of one that failed."""
    streamed: dict[str, list[Any]] = {name: [np.zeros(0, np.float32)] for name in names}
    found: dict[str, np.ndarray[Any, Any]] = {}
    while len(found) < len(names):
        message = scheduler.outbox.get(60)
        assert message is not None, "nothing for 60 s"
        if message.type == "error":
            raise message.data
        if message.type == "stream":
            streamed[message.request_id].append(message.data.samples)
        else:
            found[message.request_id] = message.data.samples
            np.testing.assert_array_equal(np.concatenate(streamed[message.request_id]), message.data.samples)
    return found


def chunks(text: str, places: list[int]) -> list[TextChunk]:
    return [TextChunk(text[begin:end]) for begin, end in pairwise([0, *sorted(places), len(text)])]


@pytest.mark.parametrize("architecture", ALL)
def test_every_cut_of_a_text_is_spoken_alike_alone_and_beside_others(architecture: str) -> None:
    assert interface(read(str(checkpoint(architecture)))).input_streams == ["text"]
    tolerance = 1e-4 if architecture.startswith(BY_FRAME) else 0
    drawn = random.Random(1)
    cuts = [[], [*range(len(TEXT))], sorted(drawn.choices(range(len(TEXT)), k=7))]
    with running(opened(architecture)) as scheduler:
        if architecture.startswith(BY_FRAME):
            each = [replies(scheduler, [say(sentence, speech={"seed": 3})])[0][1] for sentence in sentences(TEXT)]
            assert len(each) == 3
            wanted = np.concatenate([result.samples for result in each])
        else:
            [(_, result)] = replies(scheduler, [say(TEXT, speech={"seed": 3})])
            wanted = result.samples
        for cut in cuts:
            begin(scheduler, "alone")
            write(scheduler, "alone", *chunks(TEXT, cut))
            np.testing.assert_allclose(heard(scheduler, "alone")["alone"], wanted, atol=tolerance)
        others = ["a", "b", "c", "d"]
        for name in others:
            begin(scheduler, name, 4 if name == "d" else 3)
        for chunk in chunks(TEXT, cuts[2]):
            for name in others:
                write(scheduler, name, chunk, end=False)
        for name in others:
            write(scheduler, name)
        found = heard(scheduler, *others)
        for name in others[:3]:
            np.testing.assert_allclose(found[name], wanted, atol=tolerance)
        assert not getattr(scheduler, "texts", None)


def test_every_cut_of_a_text_sounds_as_the_whole() -> None:
    text = "Hello there. Dr. Who is here, and so is everybody else! 1. One. 2. Two? Yes… no"
    with running(opened("VitsModel", max_batch_size=4)) as scheduler:
        [(_, whole)] = replies(scheduler, [say(text, speech={"seed": 3})])

        @settings(max_examples=30, deadline=None, database=None)
        @given(st.lists(st.integers(0, len(text)), max_size=len(text)))
        def check(places: list[int]) -> None:
            begin(scheduler, "r")
            write(scheduler, "r", *chunks(text, places))
            np.testing.assert_array_equal(heard(scheduler, "r")["r"], whole.samples)

        check()


@pytest.mark.parametrize("architecture", [each for each in ALL if "Musicgen" not in str(each.values[0])])
def test_a_sentence_is_heard_before_the_next_one_is_written(architecture: str) -> None:
    with running(opened(architecture)) as scheduler:
        begin(scheduler, "r")
        write(scheduler, "r", TextChunk("Hello there. I"), end=False)
        first = scheduler.outbox.get(60)
        assert first is not None
        assert (first.type, len(first.data.samples) > 0) == ("stream", True)
        scheduler.abort("r")


@pytest.mark.parametrize("architecture", FEW)
def test_a_request_that_waits_for_its_text_keeps_nobody_from_speaking(architecture: str) -> None:
    with running(opened(architecture, max_running=1)) as scheduler:
        for name in ("silent", "slow"):
            begin(scheduler, name)
        write(scheduler, "slow", TextChunk("Hello there. I am"), end=False)
        [(_, alone)] = replies(scheduler, [say("Hello there.", speech={"seed": 3})])
        assert scheduler.waiting("slow") == scheduler.waiting("silent") == "more of its text"  # type: ignore[attr-defined]
        assert scheduler.waiting("nobody") == ""  # type: ignore[attr-defined]
        write(scheduler, "slow", TextChunk(" slow."))
        write(scheduler, "silent", TextChunk("Hello there."))
        found = _rest(scheduler, "slow", "silent")
        np.testing.assert_allclose(found["silent"], alone.samples, atol=1e-4)
        assert len(found["slow"]) > len(alone.samples)


def _rest(scheduler: Scheduler, *names: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the results of requests of which others may have read the beginning."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    while len(found) < len(names):
        message = scheduler.outbox.get(60)
        assert message is not None
        assert message.type != "error", message.data
        if message.type == "result":
            found[message.request_id] = message.data.samples
    return found


@pytest.mark.parametrize("architecture", ["VitsModel", "CsmForConditionalGeneration"])
def test_a_text_that_fails_does_so_after_what_is_complete(architecture: str) -> None:
    with running(opened(architecture, max_characters=20)) as scheduler:
        [(_, alone)] = replies(scheduler, [say("Hello there.", speech={"seed": 3})])
        for ends, error, words in (
            ([TextChunk(" And this is too much. And more.")], RequestTooLargeError, "limit of 20 characters"),
            ([TextChunk(" A"), 5], InvalidRequestError, "must be a TextChunk"),
        ):
            begin(scheduler, "r")
            write(scheduler, "r", TextChunk("Hello there."), *ends)
            samples = []
            while (message := scheduler.outbox.get(60)) is not None and message.type == "stream":
                samples.append(message.data.samples)
            assert message is not None
            assert isinstance(message.data, error)
            assert words in str(message.data)
            np.testing.assert_allclose(np.concatenate(samples), alone.samples, atol=1e-4)
        for texts in ([], [""], [" \n"]):
            begin(scheduler, "empty")
            write(scheduler, "empty", *map(TextChunk, texts))
            with pytest.raises(InvalidRequestError, match="nothing to speak"):
                heard(scheduler, "empty")


def test_a_voice_is_kept_over_the_sentences() -> None:
    with running(opened("CsmForConditionalGeneration")) as scheduler:
        drawn = np.random.default_rng(0).normal(size=4800).astype(np.float32).clip(-1, 1) * 0.3
        reference = {"samples": drawn, "sample_rate": 24_000, "text": "Said."}
        fields: dict[str, Any] = {"metadata": {"speaker": "3"}}
        alone = []
        for sentence in sentences(TEXT):
            asked = evolve(say(sentence, speech={"seed": 3}), **fields)
            asked.inputs["references"] = [reference]
            alone.append(replies(scheduler, [asked])[0][1].samples)
        begin(scheduler, "r", inputs={"messages": [], "references": [reference]}, **fields)
        write(scheduler, "r", *chunks(TEXT, [7, 30]))
        np.testing.assert_allclose(heard(scheduler, "r")["r"], np.concatenate(alone), atol=1e-4)


def test_a_slow_reader_lets_the_writer_wait() -> None:
    scheduler: Any = opened("VitsModel")
    told: list[tuple[str, bool]] = []
    scheduler.hold_input = lambda request_id, held: told.append((request_id, held))
    sentence = "this is a sentence of more than forty characters. "
    with running(scheduler):
        begin(scheduler, "r")
        scheduler.pause("r", True)
        text = "A. " + sentence * (2 * MOST_UNSPOKEN // len(sentence))
        write(scheduler, "r", *chunks(text, [*range(0, len(text), 5)]))
        send(scheduler, "other", say("Hello"))
        assert len(_rest(scheduler, "other")) == 1
        assert told == [("r", True), ("r", False)], "it waits until the end is there"
        scheduler.pause("r", False)
        [(_, whole)] = replies(scheduler, [say("Hello", speech={"seed": 1})])
        assert len(whole.samples) < len(_rest(scheduler, "r")["r"])


def test_an_abort_in_a_sentence_ends_its_compute() -> None:
    before = threading.active_count()
    with running(opened("CsmForConditionalGeneration")) as scheduler:
        begin(scheduler, "long", params={"speech": {"max_new_tokens": 400}})
        write(scheduler, "long", TextChunk("Hello there. And a second sentence which is long."), end=False)
        assert scheduler.outbox.get(60) is not None
        scheduler.abort("long")
        [(_, result)] = replies(scheduler, [say("Hello", speech={"max_new_tokens": 3, "seed": 1})])
        assert len(result.samples)
        assert not scheduler.texts  # type: ignore[attr-defined]
    assert threading.active_count() == before


@pytest.mark.full
class TestPipeline(PipelineConformance):
    def config(self) -> PipelineConfig:
        return transformers(str(checkpoint("VitsModel")))

    def requests(self) -> list[OmniRequest]:
        return [say(text, speech={"seed": 3}) for text in ("Hello there.", TEXT)]

    def inputs(self) -> list[tuple[OmniRequest, list[Any]]]:
        request = OmniRequest({"messages": []}, {"speech": {"seed": 3}})
        return [(request, chunks(text, [*range(len(text))])) for text in ("Hello there.", TEXT)]
