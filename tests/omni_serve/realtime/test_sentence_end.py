"""Turns that end by what was said, in simulated time: a frame of the detector is the clock."""

from __future__ import annotations

from typing import Any

import pytest
from realtime_events import append, events, kinds, make, silence, update, voice

from omni_serve.realtime.config import Offer
from omni_serve.realtime.sentence_end import is_finished
from omni_serve.realtime.session import Session

LISTENS = Offer(listens=True)
STEP = 20
"""Milliseconds of a frame."""


def talk(eagerness: str | None = None, offer: Offer = LISTENS, transcription: Any = {}, **vad: Any) -> Session:  # noqa: B006
    session = make(offer)
    turns = {"type": "semantic_vad", **({"eagerness": eagerness} if eagerness else {}), **vad}
    session.receive(update(audio={"input": {"turn_detection": turns, "transcription": transcription}}), 0)
    return session


def speak(session: Session, seconds: float = 0.4) -> str:
    """Begin a turn, or go on with it; return the id of its item."""
    started = [each for each in events(session.receive(append(voice(seconds)), 0)) if "speech_started" in each["type"]]
    return started[0]["item_id"] if started else ""


def milliseconds_to_the_end(session: Session, most: int = 5_000) -> int:
    """Return how long the user is silent until the turn ends."""
    for passed in range(STEP, most + 1, STEP):
        if "input_audio_buffer.speech_stopped" in kinds(session.receive(append(silence(STEP / 1000)), 0)):
            return passed
    raise AssertionError(f"no end in {most} ms")


def after(text: str, eagerness: str | None = None, **vad: Any) -> int:
    """Return the silence that ends a turn with this text, once the recogniser has shown that it writes marks."""
    session = talk(eagerness, **vad)
    session.said(speak(session), "Hello.")
    milliseconds_to_the_end(session)
    item = speak(session, 0.4)
    session.said(item, text[:3], text[3:])
    return milliseconds_to_the_end(session)


def near(milliseconds: int) -> Any:
    """The detector hears the end of a word up to three frames later."""
    return pytest.approx(milliseconds, abs=3 * STEP)


@pytest.mark.parametrize(
    ("eagerness", "sentence", "words"),
    [(None, 250, 1000), ("auto", 250, 1000), ("low", 400, 2000), ("medium", 250, 1000), ("high", 150, 500)],
)
def test_a_finished_sentence_ends_a_turn_sooner_and_other_words_later(
    eagerness: str | None, sentence: int, words: int
) -> None:
    assert after("What is the time?", eagerness) == near(sentence)
    assert after("I would like to", eagerness) == near(words)
    assert after("I met Dr.", eagerness) == near(words)


def test_the_usual_silence_is_that_of_the_session() -> None:
    assert after("What is the time?", silence_duration_ms=1000) == near(500)


def test_without_a_text_or_marks_the_usual_silence_ends_a_turn() -> None:
    assert after("") == near(500)
    session = talk()
    session.said(speak(session), "i would like to")
    assert milliseconds_to_the_end(session) == near(500)


def test_a_text_that_may_lack_the_latest_words_ends_nothing_sooner() -> None:
    session = talk()
    item = speak(session)
    session.said(item, "Hello there.")
    assert speak(session) == ""
    assert milliseconds_to_the_end(session) == near(500)
    item = speak(session)
    session.said(item, "I want")
    session.receive(append(silence(0.6)), 0)
    assert session.speaking
    session.said("another", "No.")
    assert session.speaking
    session.said(item, " that.")
    assert milliseconds_to_the_end(session) <= 2 * STEP


def test_words_of_a_turn_that_has_ended_are_not_those_of_the_next() -> None:
    session = talk()
    first = speak(session)
    session.said(first, "Hello.")
    milliseconds_to_the_end(session)
    session.said(first, " More.")
    speak(session)
    assert milliseconds_to_the_end(session) == near(500)


@pytest.mark.parametrize(("offer", "transcription"), [(Offer(), {}), (LISTENS, None)])
def test_where_nothing_is_written_down_meanwhile_turns_end_by_voice_activity(offer: Offer, transcription: Any) -> None:
    session = make(offer)
    turns = {"type": "semantic_vad", "eagerness": "high"}
    (told,) = events(
        session.receive(update(audio={"input": {"turn_detection": turns, "transcription": transcription}}), 0)
    )
    assert told["session"]["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    assert "eagerness" not in told["session"]["audio"]["input"]["turn_detection"]
    assert told["x_omni_ignored"] == [f"session.audio.input.turn_detection.{name}" for name in ("type", "eagerness")]


def test_a_session_says_how_its_turns_end_and_may_change_it() -> None:
    session = talk("high")
    shown = session.shown()["audio"]["input"]["turn_detection"]
    assert (shown["type"], shown["eagerness"], shown["silence_duration_ms"]) == ("semantic_vad", "high", 500)
    (told,) = events(session.receive(update(audio={"input": {"turn_detection": {"type": "server_vad"}}}), 0))
    assert "eagerness" not in told["session"]["audio"]["input"]["turn_detection"]
    assert "x_omni_ignored" not in told
    given = {"type": "server_vad", "eagerness": "low"}
    (told,) = events(session.receive(update(audio={"input": {"turn_detection": given}}), 0))
    assert told["x_omni_ignored"] == ["session.audio.input.turn_detection.eagerness"]


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("", False), (" ", False), ("Yes", False), ("Yes.", True), ("Yes. No.", True), ("Really?!", True), ("He said “no.”", True),
        ("One. Two. Three, and", False), ("Mr.", False), ("See no. 5.", True), ("你好。", True), ("x " * 500 + "end.", True),
        ("In the U.S.", False), ("Wait...", True),
    ],
)  # fmt: skip
def test_a_sentence_has_a_mark_at_its_end_that_is_no_abbreviation(text: str, finished: bool) -> None:
    assert is_finished(text) == finished
