"""Text is spoken as it comes: the same speech however it is cut, alone or beside others, and sound before the text ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen3_tts_cases import LONG, Case, cases_of
from qwen3_tts_stages import GREEDY, Stages, asking

from omni_core.errors import InvalidRequestError, RequestTooLargeError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import ReasoningChunk, TextChunk
from omni_core.scheduling.base import IncomingMessage
from omni_qwen3_tts.config import read_config
from omni_qwen3_tts.feedback import TalkerFeedback
from omni_qwen3_tts.payloads import ClonedVoice, SpeechStart, SpeechText
from omni_qwen3_tts.preprocessing import PreprocessingScheduler, create_preprocessing
from omni_qwen3_tts.talker import TalkerRunner
from omni_qwen3_tts.talker_network import load_talker
from omni_testing import StreamedInputConformance
from omni_testing.runner_driver import Driver

Tiny = Callable[[str], Path]


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(min(each, len(text)) for each in places)})
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


class TestPreprocessing(StreamedInputConformance):
    """The scheduler, with a text as its input."""

    @pytest.fixture(autouse=True)
    def _checkpoint(self, tiny: Tiny) -> None:
        self._path = str(tiny("a"))

    def make(self) -> PreprocessingScheduler:
        return create_preprocessing(self._path)

    def request(self) -> OmniRequest:
        return OmniRequest({"messages": []}, stream=True)

    def pieces(self, number: int) -> list[str]:
        return list(f"{number} red foxes, by the sea.")

    def join(self, pieces: list[str]) -> str:
        return "".join(pieces)

    def bad(self) -> str:
        return "<|im_end|>"


@settings(max_examples=4)
@given(cuts=st.lists(st.lists(st.integers(0, len(LONG)), max_size=12), min_size=6, max_size=6))
@pytest.mark.parametrize("shape", ["c", pytest.param("base-b", marks=pytest.mark.full)])
def test_speech_does_not_depend_on_the_cut(shape: str, tiny: Tiny, cuts: list[list[int]]) -> None:
    """Seeded, and equal to that of the whole text on two tracks. Of the clone, its recording is longer than what is said in it."""
    case = next(each for each in cases_of(shape) if each.text == LONG and each.dual_track)
    pieces = [cut(LONG, each) for each in cuts]
    made = Stages(tiny(shape)).run(
        asking(case, seed=1), *(asking(case, each, seed=1) for each in pieces), asking(case, list(LONG), seed=1)
    )
    assert len(made[0].codes) > 5
    for other in made[1:]:
        assert np.array_equal(other.codes, made[0].codes)
        np.testing.assert_allclose(other.samples, made[0].samples, atol=1e-5)


def test_a_stream_is_read_on_two_tracks_unless_it_says_otherwise(tiny: Tiny) -> None:
    case = Case("custom_voice", LONG, speaker="ryan")
    track, whole, waited = Stages(tiny("a")).run(
        asking(replace(case, dual_track=True), **GREEDY),
        asking(case, **GREEDY),
        asking(case, [LONG[:9], LONG[9:]], **GREEDY),
    )
    assert np.array_equal(waited.codes, whole.codes)
    assert not np.array_equal(track.codes, whole.codes)
    streamed = asking(case, [LONG], **GREEDY)
    del streamed.request.params["talker"]["dual_track"]
    assert np.array_equal(Stages(tiny("a")).run(streamed)[0].codes, track.codes)


def test_the_talker_waits_for_text_and_speaks_what_has_come(tiny: Tiny) -> None:
    """One frame for each token, and the frames of the rest once the text has ended."""
    folder = str(tiny("b"))
    config = read_config(folder)
    driver = Driver(TalkerRunner(load_talker(folder, config), config, {}, TalkerFeedback()))
    request = OmniRequest(params={"talker": {**GREEDY, "max_new_tokens": 20}})

    def give(kind: str, data: object = None) -> int:
        driver.give(IncomingMessage("r", kind, data, "preprocessing", None, request))  # type: ignore[arg-type]
        with torch.inference_mode():
            while driver.step():
                continue
        answer = driver.answers.get("r")
        return 0 if answer is None else len(answer.messages)

    assert give("stream_chunk", SpeechStart(opening=torch.tensor([1, 2, 3]), dual_track=True)) == 0
    assert give("stream_chunk", SpeechText(ids=torch.tensor([30]))) == 1
    assert give("stream_chunk", SpeechText(ids=torch.tensor([31, 32]))) == 3
    assert give("stream_done") == 19


def test_a_text_of_another_pipeline_may_be_empty(tiny: Tiny) -> None:
    """It is no sound and no error, with the words of a voice too."""
    folder = str(tiny("base-a"))
    config = read_config(folder)
    driver = Driver(TalkerRunner(load_talker(folder, config), config, {}, TalkerFeedback()))
    voice = ClonedVoice(embedding=torch.zeros(32), codes=torch.zeros(2, 4, dtype=torch.int64), words=torch.tensor([5]))
    for name, chunks in {
        "r": [],
        "s": [SpeechStart(opening=torch.tensor([1, 2, 3]), dual_track=True, voice=voice)],
    }.items():
        for chunk in chunks:
            driver.give(IncomingMessage(name, "stream_chunk", chunk, "preprocessing", None, OmniRequest()))
        driver.give(IncomingMessage(name, "stream_done", None, "preprocessing", None, OmniRequest()))
        driver.run()
        assert driver.answers[name].result == {"frames": 0, "finish_reason": "stop"}
        assert not driver.answers[name].messages
    scheduler = create_preprocessing(str(tiny("a")))
    request = OmniRequest(composed={"modalities": None})
    scheduler.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", request, None), None, None, request))
    scheduler.inbox.put(IncomingMessage("r", "stream_done", None, None, None, request))
    while len(scheduler.inbox):
        scheduler.turn()
    assert scheduler.outbox.drain()[-1].type == "result"


def preprocessed(folder: Path, chunks: list[object], **changes: object) -> list[object]:
    """Return what preprocessing has streamed before the text's end."""
    scheduler = create_preprocessing(str(folder))
    request = evolve(OmniRequest({"messages": []}), **changes)
    light = request.without_inputs()
    scheduler.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", request, None), None, None, light))
    for chunk in chunks:
        scheduler.inbox.put(IncomingMessage("r", "stream_chunk", chunk, None, None, light))
    while len(scheduler.inbox):
        scheduler.turn()
    sent = scheduler.outbox.drain()
    if sent and sent[-1].type == "error":
        raise sent[-1].data
    return [each.data for each in sent]


def test_tokens_go_on_before_the_text_ends(tiny: Tiny) -> None:
    start, text = preprocessed(tiny("a"), [TextChunk("A red fo"), ReasoningChunk("x"), "x, a"])
    assert start["dual_track"]  # type: ignore[index]
    assert len(text["ids"]) > 3  # type: ignore[index]


@pytest.mark.parametrize(("times", "told"), [("word", ["A red fo", "x."]), ("none", [])])
def test_the_text_goes_to_the_aligner_of_who_asks_for_times(times: str, told: list[str], tiny: Tiny) -> None:
    scheduler = create_preprocessing(str(tiny("a")), aligner="align")
    request = OmniRequest({"messages": []}, {"timestamps": times})
    scheduler.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", request), None, None, request))
    for piece in ("A red fo", "x."):
        scheduler.inbox.put(IncomingMessage("r", "stream_chunk", TextChunk(piece), None, None, request))
        scheduler.turn()
    assert [each.data["text"] for each in scheduler.outbox.drain() if each.target == "align"] == told


def test_an_input_without_text_and_a_long_one_fail(tiny: Tiny) -> None:
    with pytest.raises(InvalidRequestError, match="there is no text to speak"):
        Stages(tiny("a")).run(asking(Case("custom_voice", ""), ["", "  ", "\n"]))
    with pytest.raises(RequestTooLargeError, match=r"over the limit of 4000 characters \(max_characters\)"):
        preprocessed(tiny("a"), ["a fox " * 500, "a fox " * 500])
    with pytest.raises(TypeError, match="must be str or TextChunk, is int"):
        preprocessed(tiny("a"), [5])
