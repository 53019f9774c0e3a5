"""Transcripts and sounds as a pipeline sends them: toys that follow the rules, by the suite and the client, and what breaks each rule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from attrs import evolve
from recogniser import INTERFACE, recogniser, recording
from speaker import RATE, speaker

import omni_core as omni
from omni_core.config.schema import PipelineConfig
from omni_core.coordinator import StreamEvent
from omni_core.interface import WORD_TIMES, Interface, Parameter
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import (
    AudioChunk,
    AudioResult,
    Segment,
    TextChunk,
    TextResult,
    TokenLogprob,
    Transcript,
    TranscriptChunk,
    Word,
)
from omni_testing import PipelineConformance
from omni_testing.outputs import check_outputs, check_sound, check_transcript


def asked(seconds: float, **params: Any) -> OmniRequest:
    parts = [{"type": "audio", "data": recording(seconds)}]
    return OmniRequest({"messages": [{"role": "user", "content": parts}]}, params)


class TestSpeaker(PipelineConformance):
    def config(self) -> PipelineConfig:
        return speaker()

    def requests(self) -> list[OmniRequest]:
        return [OmniRequest({"messages": [{"role": "user", "content": text}]}) for text in ("one two", "three", "")]


class TestRecogniser(PipelineConformance):
    def config(self) -> PipelineConfig:
        return recogniser()

    def requests(self) -> list[OmniRequest]:
        return [asked(0.5, timestamps="word", diarize=True), asked(0.35, language="de", timestamps="segment"), asked(0)]


def test_the_suite_of_pipelines_reads_what_they_stream() -> None:
    suite = TestRecogniser()
    suite.config = lambda: recogniser("recogniser:unspaced")  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="stage 'listen': the final text of the chunks is not that of the result"):
        suite.test_streamed_together_or_alone_it_answers_alike()


def test_a_reply_has_the_transcript_and_its_pieces() -> None:
    with omni.open(recogniser()) as pipe:
        reply = pipe.chat("", audio=recording(0.45), timestamps="word", diarize=True)
        streamed = pipe.chat("", audio=recording(0.45), stream=True)
        pieces = list(streamed)
    assert reply.text == "one two three four"
    assert reply.usage.completion_tokens == 4
    assert reply.transcript is not None
    assert (reply.transcript.language, reply.transcript.speakers) == ("en", ["A", "B"])
    assert reply.transcript.words[3] == Word("four", pytest.approx(0.3), pytest.approx(0.4), "B", 0.5)
    assert [str(each) for each in pieces] == ["one", " two", " three", " four"]
    assert all(isinstance(each, omni.TranscriptPiece) for each in pieces)
    assert [each.tentative for each in pieces if isinstance(each, omni.TranscriptPiece)] == [
        " two?",
        " three?",
        " four?",
        "",
    ]
    assert streamed.reply.text == "one two three four"
    assert streamed.reply.transcript is not None
    assert not streamed.reply.transcript.words


LOGPROBS = [TokenLogprob("one", b"one", -0.5, 1), TokenLogprob(" two", b" two", -1.5, 2)]
CHUNKS = [
    TranscriptChunk("one", " too"),
    TranscriptChunk(
        " two", "", [Segment("one two", 0.0, 1.0)], [Word("one", 0.0, 0.4), Word("two", 0.5, 1.0)], LOGPROBS
    ),
]
RESULT = Transcript("one two", "en", CHUNKS[1].segments, CHUNKS[1].words, 1.0, logprobs=LOGPROBS)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda: (CHUNKS, TextResult("one two")), "finishes with a Transcript, not TextResult"),
        (lambda: ([TextChunk("one two")], RESULT), "streamed as TranscriptChunk, not TextChunk"),
        (lambda: (CHUNKS[:1], RESULT), "the final text of the chunks is not that of the result"),
        (lambda: (CHUNKS, evolve(RESULT, words=[])), "the words of the chunks are not"),
        (lambda: ([], evolve(RESULT, segments=[])), "timestamps=word: there are no segments"),
        (lambda: ([], evolve(RESULT, words=[])), "there are no words"),
        (
            lambda: ([], evolve(RESULT, words=[Word("two", 0.5, 1.1)])),
            r"words\[0\]: from 0.5 to 1.1 s, of a sound of 1.0",
        ),
        (lambda: ([], evolve(RESULT, words=[Word("two", 0.5, 0.4)])), r"words\[0\]: from 0.5 to 0.4 s"),
        (lambda: ([], evolve(RESULT, words=RESULT.words[::-1])), "words: one starts at 0.5 s and the next at 0.0 s"),
        (lambda: ([], evolve(RESULT, words=[Word("two", 0, 1, None, 2.0)])), "confidence: 2.0"),
        (lambda: ([], evolve(RESULT, finish_reason="cut")), "finish_reason: 'cut' is none"),
        (
            lambda: ([], evolve(RESULT, logprobs=[TokenLogprob("one", b"one", -1.0, 1)])),
            "logprobs: their bytes are b'one'",
        ),
        (lambda: ([], evolve(RESULT, logprobs=[TokenLogprob("one", b"one", 0.5, 1)])), "0.5 is no logarithm"),
        (lambda: (CHUNKS, evolve(RESULT, logprobs=LOGPROBS[:1])), "the logprobs of the chunks are not"),
    ],
)
def test_each_rule_of_transcripts_is_checked(break_it: Callable[[], tuple[list[Any], Any]], words: str) -> None:
    check_transcript(CHUNKS, RESULT, "word")
    with pytest.raises(AssertionError, match=words):
        check_transcript(*break_it(), timestamps="word")


def test_the_suite_checks_what_the_request_asked_for_and_names_the_stage() -> None:
    events = [StreamEvent("listen", evolve(RESULT, words=[]), final=True)]
    check_outputs(events, INTERFACE, OmniRequest({}, {"timestamps": "segment"}))
    for params in ({"timestamps": "word"}, {"listen": {"timestamps": "word"}}):
        with pytest.raises(AssertionError, match="stage 'listen': timestamps=word: there are no words"):
            check_outputs(events, INTERFACE, OmniRequest({}, params))
    with pytest.raises(AssertionError, match=r"stage 'listen': .* not TextResult"):
        check_outputs([StreamEvent("listen", TextResult("x"), final=True)], INTERFACE, OmniRequest())


def test_a_speech_has_its_words_and_where_its_pieces_begin() -> None:
    with omni.open(speaker()) as pipe:
        whole = pipe.chat("one two").audio
        streamed = pipe.chat("one two", stream=True)
        pieces = [each for each in streamed if isinstance(each, omni.AudioPiece)]
    assert [each.text for each in whole.words] == ["one", "two"]
    assert [(each.start, each.words[0].text) for each in pieces] == [(0.0, "one"), (pieces[0].seconds, "two")]
    assert streamed.reply.audio.words == whole.words
    assert whole.words[1].end == pytest.approx(whole.seconds)


def test_a_sound_of_another_rate_than_declared_fails_its_request_and_names_the_stage() -> None:
    with omni.open(speaker(sample_rate=RATE * 2)) as pipe:
        for stream in (False, True):
            with pytest.raises(omni.RequestFailedError, match="stage 'say' made sound of 8000 Hz") as caught:
                reply = pipe.chat("one", stream=stream)
                list(reply if stream else [])
            assert caught.value.stage == "say"


SOUND = [AudioChunk([0.0] * 4, 8, 0.0, [Word("one", 0, 0.5)]), AudioChunk([0.0] * 4, 8, 0.5, [Word("two", 0.5, 1)])]
SPEECH = AudioResult([0.0] * 8, 8, words=[Word("one", 0, 0.5), Word("two", 0.5, 1)])


@pytest.mark.parametrize(
    ("chunks", "result", "words"),
    [
        ([TextChunk("x")], SPEECH, "streamed as AudioChunk, not TextChunk"),
        ([SOUND[0], evolve(SOUND[1], sample_rate=9)], SPEECH, "sample_rate: 9 Hz, and 8 Hz elsewhere"),
        (SOUND, evolve(SPEECH, sample_rate=16), "sample_rate: 16 Hz, and 8 Hz elsewhere"),
        (SOUND[:1], SPEECH, "the chunks have 4 samples, the result 8"),
        ([evolve(SOUND[0], start=0.6), SOUND[1]], SPEECH, "start: a chunk begins at 0.5 s, after one at 0.6 s"),
        ([evolve(SOUND[0], start=-0.1), SOUND[1]], SPEECH, "start: a chunk begins at -0.1 s"),
        (SOUND, evolve(SPEECH, words=[]), "the words of the chunks are not the first of the result's"),
        ([], evolve(SPEECH, words=SPEECH.words[::-1]), "words: one starts at 0.5 s and the next at 0"),
        ([], evolve(SPEECH, words=[Word("one", 0, 1.1)]), r"words\[0\]: from 0 to 1.1 s, of a sound of 1.0 s"),
    ],
)
def test_each_rule_of_sounds_is_checked(chunks: list[Any], result: AudioResult, words: str) -> None:
    check_sound(SOUND, SPEECH, 8)
    check_sound([evolve(each, start=None, words=[]) for each in SOUND], SPEECH, tells_words=True)
    check_sound([*SOUND[:1], evolve(SOUND[1], words=[]), AudioChunk([], 8, words=SOUND[1].words)], SPEECH)
    with pytest.raises(AssertionError, match=words):
        check_sound(chunks, result, 8)
    events = [StreamEvent("say", each, final=False) for each in chunks] + [StreamEvent("say", result, final=True)]
    with pytest.raises(AssertionError, match="stage 'say': "):
        check_outputs(events, evolve(INTERFACE, sample_rate=8), OmniRequest())


@pytest.mark.parametrize(
    ("params", "asked", "fails"), [([], "none", True), ([WORD_TIMES], "word", True), ([WORD_TIMES], "none", False)]
)
def test_a_sound_has_the_words_that_its_interface_declares(params: list[Parameter], asked: str, fails: bool) -> None:
    declared = Interface(outputs=["audio"], params=params, word_times=True)
    request = OmniRequest({}, {"timestamps": asked})
    check_outputs([StreamEvent("say", SPEECH, final=True)], declared, request)
    with pytest.raises(AssertionError, match="there are no words") if fails else nullcontext():
        check_outputs([StreamEvent("say", evolve(SPEECH, words=[]), final=True)], declared, request)
