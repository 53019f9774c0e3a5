"""Replies out of the results of terminal stages, whatever these are."""

from __future__ import annotations

import numpy as np

from omni_core.client.replies import AudioPiece, Collector, TextPiece, TranscriptPiece
from omni_core.coordinator import StreamEvent
from omni_core.interface import Interface
from omni_core.protocol.outputs import (
    AudioChunk,
    AudioResult,
    ReasoningChunk,
    TextChunk,
    TextResult,
    Transcript,
    TranscriptChunk,
    Word,
)


def collected(*events: StreamEvent, interface: Interface | None = None) -> tuple[list[list[object]], Collector]:
    collector = Collector("id", interface)
    return [list(collector.add(event)) for event in events], collector


def test_a_stage_that_does_not_stream_adds_its_result_as_one_piece() -> None:
    pieces, collector = collected(
        StreamEvent("a", TextResult("hello", finish_reason="length"), final=True),
        StreamEvent("b", AudioResult([0.0, 0.5], 8000, notices=["short"]), final=True),
    )
    assert pieces[0] == [TextPiece("hello")]
    assert [type(each) for each in pieces[1]] == [AudioPiece]
    reply = collector.reply()
    assert (reply.text, reply.finish_reason, reply.notices) == ("hello", "length", ["short"])
    assert reply.audio.samples.dtype == np.float32


def test_streams_without_a_result_are_joined() -> None:
    pieces, collector = collected(
        StreamEvent("a", TextChunk("one "), final=False),
        StreamEvent("a", "two", final=False),
        StreamEvent("b", AudioChunk(np.zeros(3, np.float32), 8000), final=False),
        StreamEvent("b", AudioChunk(np.ones(2, np.float32), 8000), final=False),
        StreamEvent("a", None, final=True),
        StreamEvent("b", None, final=True),
    )
    assert [len(each) for each in pieces] == [1, 1, 1, 1, 0, 0]
    reply = collector.reply()
    assert reply.text == "one two"
    assert reply.audio.samples.tolist() == [0, 0, 0, 1, 1]


def test_what_was_streamed_is_not_repeated_by_the_result() -> None:
    pieces, collector = collected(
        StreamEvent("a", TextChunk("hi"), final=False), StreamEvent("a", TextResult("hi"), final=True)
    )
    assert pieces == [[TextPiece("hi")], []]
    assert collector.reply().text == "hi"


def test_words_that_come_behind_their_sound_are_a_piece_without_samples() -> None:
    said = [Word("hi", 0, 0.5)]
    pieces, collector = collected(
        StreamEvent("a", AudioChunk(np.zeros(4, np.float32), 8), final=False),
        StreamEvent("a", AudioChunk(np.zeros(0, np.float32), 8, words=said), final=False),
        StreamEvent("a", AudioChunk(np.zeros(0, np.float32), 8), final=False),
        StreamEvent("a", AudioResult(np.zeros(4, np.float32), 8, words=said), final=True),
    )
    assert [[each.words for each in one] for one in pieces] == [[[]], [said], [], []]
    assert collector.reply().audio.words == said


def test_what_the_model_thinks_is_no_text() -> None:
    pieces, collector = collected(
        StreamEvent("a", ReasoningChunk("hm"), final=False),
        StreamEvent("a", TextResult("hi", reasoning="hm"), final=True),
    )
    assert pieces == [[], [TextPiece("hi")]]
    assert (collector.reply().text, collector.reply().reasoning) == ("hi", "hm")
    assert collected()[1].reply().reasoning == ""


def test_other_results_are_found_by_their_role_else_their_stage() -> None:
    interface = Interface(roles={"scores": "judge"})
    _, collector = collected(
        StreamEvent("words", "plain text", final=True),
        StreamEvent("judge", {"score": 1}, final=True),
        StreamEvent("other", 3, final=True),
        StreamEvent("again", TextResult(""), final=True),
        interface=interface,
    )
    reply = collector.reply()
    assert reply.outputs == {"text": "plain text", "scores": {"score": 1}, "other": 3, "again": TextResult("")}
    assert reply.text == "plain text"
    assert not reply.audio


def test_usage_keeps_what_else_is_counted() -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "frames": 7}
    _, collector = collected(StreamEvent("a", TextResult("x", usage=usage), final=True))
    found = collector.reply().usage
    assert (found.total_tokens, found.details) == (5, {"frames": 7})


def test_a_transcript_is_the_text_of_a_pipeline_that_writes_nothing_else() -> None:
    whole = Transcript("hello you", finish_reason="length", usage={"completion_tokens": 2}, notices=["cut"])
    pieces, collector = collected(
        StreamEvent("listen", TranscriptChunk("hello", " your"), final=False),
        StreamEvent("listen", TranscriptChunk("", " you"), final=False),
        StreamEvent("listen", TranscriptChunk(" you"), final=False),
        StreamEvent("listen", whole, final=True),
    )
    shown = [[TranscriptPiece("hello", " your")], [TranscriptPiece("", " you")], [TranscriptPiece(" you")], []]
    assert pieces == shown
    reply = collector.reply()
    assert (reply.text, reply.transcript, reply.finish_reason, reply.notices) == ("hello you", whole, "length", ["cut"])
    assert reply.usage.completion_tokens == 2
    assert collected(StreamEvent("listen", whole, final=True))[0] == [[TranscriptPiece("hello you")]]


def test_an_answer_is_not_its_question() -> None:
    heard = StreamEvent("listen", Transcript("how are you"), final=True)
    for answer in (TextResult("fine"), "fine"):
        reply = collected(heard, StreamEvent("write", answer, final=True))[1].reply()
        assert reply.text == "fine"
        assert reply.transcript is not None
        assert reply.transcript.text == "how are you"
    _, collector = collected(
        heard, StreamEvent("write", TextChunk("fine"), final=False), StreamEvent("write", None, final=True)
    )
    assert collector.reply().text == "fine"
