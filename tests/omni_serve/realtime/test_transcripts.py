"""Turns that are written down while they are spoken, without IO: the recogniser hears what the item holds, however it came."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from realtime_events import append, events, kinds, make, silence, started, update, voice

from omni_serve.encoders import Samples, pcm16, wav_header
from omni_serve.errors import ApiError
from omni_serve.realtime.actions import Abort, Action, Feed, Finish, Listen, Start, Transcribe
from omni_serve.realtime.audio import INPUT_RATE
from omni_serve.realtime.config import Offer
from omni_serve.realtime.live import Live
from omni_serve.realtime.session import Session

COMMIT = {"type": "input_audio_buffer.commit"}
CLEAR = {"type": "input_audio_buffer.clear"}
DELTA, COMPLETED, FAILED = (
    f"conversation.item.input_audio_transcription.{each}" for each in ("delta", "completed", "failed")
)
LISTENS = Offer(listens=True)
VAD = {"type": "server_vad", "create_response": False}


def listening(by_hand: bool = False, **limits: Any) -> Session:
    session = make(LISTENS, **limits)
    session.receive(config("en", by_hand), 0)
    return session


def config(language: str | None, by_hand: bool = False) -> dict[str, Any]:
    transcription = {"language": language} if language else None
    return update(audio={"input": {"turn_detection": None if by_hand else VAD, "transcription": transcription}})


class Recogniser:
    """Takes the actions of a session as its shell would, and keeps what each request has heard."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.heard: dict[str, list[Samples]] = {}
        self.open: dict[str, str | None] = {}
        self.whole: dict[str, Transcribe] = {}
        self.finished: set[str] = set()
        self.aborted: list[str] = []

    def take(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, Listen):
                assert action.item not in self.open
                self.open[action.item], self.heard[action.item] = action.language, []
            elif isinstance(action, Feed):
                assert action.item in self.open
                assert action.item not in self.finished
                self.heard[action.item].append(action.samples)
            elif isinstance(action, Finish):
                assert action.item in self.open
                self.finished.add(action.item)
            elif isinstance(action, Abort) and action.reply.startswith("item"):
                del self.open[action.reply]
                self.finished.discard(action.reply)
                self.aborted.append(action.reply)
            elif isinstance(action, Transcribe):
                self.whole[action.item] = action
        return actions

    def hears(self, item: str) -> bytes:
        """Return what a request has heard, as an item would keep it."""
        return pcm16(np.concatenate(self.heard[item]))

    def send(self, event: dict[str, Any]) -> list[Action]:
        return self.take(self.session.receive(event, 0))


def kept(session: Session) -> dict[str, bytes]:
    """Return the sound of the items by their ids."""
    head = len(wav_header(INPUT_RATE, 0))
    return {item.id: item.content[0].data[head:] for item in session.conversation.items}


@given(st.lists(st.integers(1, 30_000), min_size=1, max_size=30), st.booleans())
def test_the_recogniser_hears_what_the_item_keeps_however_it_comes(cuts: list[int], by_hand: bool) -> None:
    sound = np.concatenate([silence(0.7), voice(0.9), silence(0.8), voice(0.5), silence(0.6)])
    session = listening(by_hand)
    recogniser = Recogniser(session)
    at, sizes = 0, itertools.chain(cuts, itertools.repeat(24_000))
    while at < len(sound):
        size = next(sizes)
        recogniser.send(append(sound[at : at + size]))
        at += size
    if by_hand:
        recogniser.send(COMMIT)
    found = kept(session)
    assert len(found) == (1 if by_hand else 2)
    assert set(recogniser.open) == set(recogniser.finished) == set(found)
    assert not recogniser.whole
    for item, data in found.items():
        assert recogniser.hears(item) == data
    assert len(next(iter(found.values()))) / 2 / INPUT_RATE > (3.0 if by_hand else 0.9)


def test_sound_goes_out_before_the_turn_has_ended() -> None:
    session = listening()
    recogniser = Recogniser(session)
    found = recogniser.send(append(np.concatenate([silence(1.0), voice(0.5)])))
    assert kinds(found) == ["input_audio_buffer.speech_started"]
    (item,) = recogniser.open
    assert events(found)[0]["item_id"] == item
    assert recogniser.open[item] == "en"
    assert sum(map(len, recogniser.heard[item])) / INPUT_RATE == pytest.approx(0.5 + 0.3, abs=0.05)
    (event,) = events(session.said(item, " one"))
    assert (event["type"], event["item_id"], event["content_index"], event["delta"]) == (DELTA, item, 0, "one")
    recogniser.send(append(silence(0.7)))
    (event,) = events(session.said(item, " two"))
    assert event["delta"] == " two"
    (event,) = events(session.transcribed(item, "one two", {"prompt_tokens": 3}))
    assert (event["type"], event["transcript"], event["usage"]["input_tokens"]) == (COMPLETED, "one two", 3)
    assert session.conversation.items[0].content[0].text == "one two"
    assert session.said(item, "late") == session.transcribed(item, "late", {}) == []


def test_tentative_words_are_replaced_and_never_taken_for_final_ones() -> None:
    session = listening(by_hand=True)
    recogniser = Recogniser(session)
    recogniser.send(append(voice(0.5)))
    (item,) = recogniser.open
    assert events(session.said(item, "", "on"))[0] | {"event_id": ""} == {
        "type": DELTA,
        "event_id": "",
        "item_id": item,
        "content_index": 0,
        "delta": "",
        "x_omni_tentative": "on",
    }
    assert "x_omni_tentative" not in events(session.said(item, "one"))[0]
    assert session.said(item, "", "") == []
    assert events(session.said(item, "", " two"))[0]["x_omni_tentative"] == " two"
    assert events(session.said(item, "", ""))[0]["x_omni_tentative"] == ""


@pytest.mark.parametrize("by_hand", [False, True])
def test_clearing_ends_the_request_and_the_next_turn_has_one_of_its_own(by_hand: bool) -> None:
    session = listening(by_hand)
    recogniser = Recogniser(session)
    recogniser.send(append(voice(0.5)))
    (item,) = recogniser.open
    session.said(item, "one")
    assert kinds(recogniser.send(CLEAR)) == ["input_audio_buffer.cleared"]
    assert recogniser.aborted == [item]
    assert session.said(item, "two") == session.transcribed(item, "two", {}) == []
    recogniser.send(append(np.concatenate([silence(0.5), voice(0.5), silence(0.7)])))
    if by_hand:
        recogniser.send(COMMIT)
    (new,) = recogniser.open
    assert new != item
    assert recogniser.hears(new) == kept(session)[new]
    assert kinds(session.said(new, "three")) == [DELTA]


def test_another_language_begins_the_turn_again_and_nothing_said_is_taken_back() -> None:
    session = listening()
    recogniser = Recogniser(session)
    recogniser.send(append(voice(0.8)))
    (item,) = recogniser.open
    session.said(item, "one")
    assert kinds(recogniser.send(config("de"))) == ["session.updated"]
    assert recogniser.aborted == [item]
    recogniser.send(append(voice(0.5)))
    assert recogniser.open == {item: "de"}
    assert session.said(item, "eins") == []
    recogniser.send(append(silence(0.7)))
    assert recogniser.hears(item) == kept(session)[item]
    (event,) = events(session.transcribed(item, "eins zwei", {}))
    assert (event["type"], event["transcript"]) == (COMPLETED, "eins zwei")
    recogniser.send(append(voice(0.8)))
    assert events(session.said(list(recogniser.open)[-1], "drei"))[0]["delta"] == "drei"


def test_no_transcription_and_other_turns_end_the_request() -> None:
    session = listening()
    recogniser = Recogniser(session)
    recogniser.send(append(voice(0.8)))
    recogniser.send(config(None))
    assert (len(recogniser.aborted), recogniser.open) == (1, {})
    recogniser.send(append(silence(0.7)))
    assert recogniser.open == recogniser.whole == {}
    assert len(session.conversation.items) == 1
    recogniser.send(config("en"))
    recogniser.send(append(voice(0.8)))
    recogniser.send(config("en", by_hand=True))
    assert (len(recogniser.aborted), recogniser.open) == (2, {})
    recogniser.send(append(voice(0.2)))
    recogniser.send(COMMIT)
    (item,) = recogniser.open
    assert recogniser.hears(item) == kept(session)[item]


def test_a_slow_recogniser_fails_the_turn_and_the_session_goes_on() -> None:
    session = listening(by_hand=True, turn_seconds=2.0)
    recogniser = Recogniser(session)
    recogniser.send(append(voice(1.5)))
    recogniser.send(COMMIT)
    (first,) = recogniser.open
    before = session.memory.used
    assert kinds(recogniser.send(append(voice(0.4)))) == []
    assert session.memory.used - before > 0.7 * INPUT_RATE * 4  # in the buffer, and for the recogniser
    (found,) = [each for each in recogniser.send(append(voice(0.4))) if isinstance(each, Abort)]
    assert found.overrun
    assert list(recogniser.open) == [first]
    assert recogniser.send(append(voice(0.4))) == []
    failed = events(recogniser.send(COMMIT))[-1]
    assert (failed["type"], failed["item_id"], failed["error"]["code"]) == (FAILED, found.reply, "overloaded")
    session.taken(first, sum(map(len, recogniser.heard[first])))
    assert kinds(session.transcribed(first, "one", {})) == [COMPLETED]
    recogniser.send(append(voice(1.0)))
    recogniser.send(COMMIT)
    assert len(recogniser.open) == 2
    session.close()
    assert session.memory.used == 0


def test_what_ends_early_is_told_when_the_item_is_there() -> None:
    session = listening(by_hand=True)
    recogniser = Recogniser(session)
    for outcome, kind in ((ApiError(503, "gone"), FAILED), ("one", COMPLETED)):
        for each in [*session.conversation.items]:
            recogniser.send({"type": "conversation.item.delete", "item_id": each.id})
        recogniser.send(append(voice(0.5)))
        item = list(recogniser.open)[-1]
        assert session.memory.used >= 2 * 0.5 * INPUT_RATE * 4 * 0.9
        assert session.transcribed(item, outcome, {}) == []
        assert session.memory.used < 1.5 * 0.5 * INPUT_RATE * 4  # what waited for the recogniser is dropped
        assert recogniser.send(append(voice(0.5))) == []
        assert kinds(recogniser.send(COMMIT))[-1] == kind


def test_a_deleted_item_gets_no_more_words() -> None:
    session = listening(by_hand=True)
    recogniser = Recogniser(session)
    recogniser.send(append(voice(0.5)))
    recogniser.send(COMMIT)
    (item,) = recogniser.open
    recogniser.send({"type": "conversation.item.delete", "item_id": item})
    assert session.said(item, "one") == session.transcribed(item, "one", {}) == []


def test_without_room_a_turn_is_written_down_at_its_end() -> None:
    session = listening(by_hand=True, transcriptions=1)
    recogniser = Recogniser(session)
    recogniser.send(append(voice(0.5)))
    recogniser.send(COMMIT)
    (first,) = recogniser.open
    recogniser.send(append(voice(0.5)))
    assert kinds(recogniser.send(COMMIT))[-1] == FAILED
    recogniser.send(append(voice(0.5)))
    session.transcribed(first, "one", {})
    assert FAILED not in kinds(recogniser.send(COMMIT))
    (item,) = recogniser.whole
    assert kinds(session.said(item, "two")) == [DELTA]
    assert kinds(session.transcribed(item, "two", {})) == [COMPLETED]


def test_the_live_api_sends_each_word_once() -> None:
    start = {"type": "session.start", "session": {"model": "m"}}
    live = Live.start(start, LISTENS, lambda config: Session(LISTENS, config), 0.0, 100)
    recogniser = Recogniser(live.session)

    def translated(actions: list[Action]) -> list[dict[str, Any]]:
        recogniser.take(actions)
        return [made for event in events(actions) if (made := live.translate(event, 2.0))]

    sound = append(np.concatenate([silence(0.5), voice(0.5)])) | {"type": "session.input_audio.append"}
    assert translated(live.receive(sound, 1.0)[0]) == []
    (item,) = recogniser.open
    (first,) = translated(live.session.said(item, " one", " two"))
    assert (first["type"], first["delta"], first["end_ms"]) == ("session.input_transcript.delta", "one", 2000)
    assert 0 < first["start_ms"] < 500
    assert translated(live.session.said(item, "", " to")) == []
    quiet = append(silence(0.7)) | {"type": "session.input_audio.append"}
    translated(live.receive(quiet, 1.0)[0])
    (second,) = translated(live.session.transcribed(item, "one too", {}))
    assert (second["delta"], second["start_ms"]) == (" too", first["start_ms"])
    translated(live.receive(sound, 1.0)[0])
    translated(live.receive(quiet, 1.0)[0])
    whole = list(recogniser.open)[-1]
    assert [event["delta"] for event in translated(live.session.transcribed(whole, "three", {}))] == ["three"]


STEPS = [
    "voice",
    "silence",
    "commit",
    "clear",
    "de",
    "en",
    "none",
    "by hand",
    "text",
    "ends",
    "fails",
    "taken",
    "delete",
]


@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_any_order_of_events_leaves_no_request_and_tells_each_turn_once(steps: list[str]) -> None:
    session = listening(turn_seconds=2.0, transcriptions=3)
    recogniser = Recogniser(session)
    told: list[str] = []
    sent: dict[str, dict[str, Any]] = {
        "voice": append(voice(0.5)),
        "silence": append(silence(0.6)),
        "commit": COMMIT,
        "clear": CLEAR,
        "de": config("de"),
        "en": config("en"),
        "none": config(None),
        "by hand": config("en", by_hand=True),
    }
    for step in [*steps, "clear"]:
        running = [*recogniser.open, *recogniser.whole]
        actions: list[Action] = []
        if step in sent:
            actions = recogniser.send(sent[step])
        elif step == "delete" and session.conversation.items:
            actions = recogniser.send({"type": "conversation.item.delete", "item_id": session.conversation.items[0].id})
        elif running and step == "text":
            actions = session.said(running[0], "word")
        elif running and step == "taken":
            session.taken(running[0], 100)
        elif running and step in ("ends", "fails"):
            actions = session.transcribed(running[0], "word" if step == "ends" else ApiError(500, "x"), {})
            recogniser.open.pop(running[0], None)
            recogniser.whole.pop(running[0], None)
        told += [event["item_id"] for event in events(actions) if event["type"] in (COMPLETED, FAILED)]
        assert len(recogniser.open) + len(recogniser.whole) <= 3
        for item in recogniser.finished & set(recogniser.open) & set(kept(session)):
            assert recogniser.hears(item) == kept(session)[item]
    assert len(told) == len(set(told))
    assert set(recogniser.open) <= recogniser.finished  # the turn in progress was cleared
    for item in [*recogniser.open, *recogniser.whole]:
        session.transcribed(item, "word", {})
    session.close()
    assert session.memory.used == 0


@pytest.mark.parametrize("found", ["What is your name?", ApiError(500, "It cannot be read.")], ids=["words", "none"])
def test_a_reply_that_reads_transcripts_waits_for_that_of_its_turn(found: str | ApiError) -> None:
    """A turn that could not be written down is sent as it was spoken."""
    session = make(Offer(listens=True, reads_transcripts=True))
    session.receive(update(audio={"input": {"transcription": {}}}), 0)
    recogniser = Recogniser(session)
    actions = recogniser.send(append(np.concatenate([silence(0.7), voice(0.9), silence(0.8)])))
    (item,) = recogniser.finished
    assert not [each for each in actions if isinstance(each, Start)]
    (part,) = started(session.transcribed(item, found, {})).messages[-1]["content"]
    assert part["type"] == ("text" if isinstance(found, str) else "audio")
    assert part.get("text", found) == found
