"""The session without IO: turns, responses, interruptions, items; and any order of events."""

from __future__ import annotations

import base64
import gc
import itertools
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from realtime_events import (
    MANUAL,
    RATE,
    append,
    events,
    kinds,
    make,
    refused,
    silence,
    started,
    update,
    user_text,
    voice,
)

from omni_core.api import Word
from omni_serve.errors import ApiError
from omni_serve.realtime.actions import Abort, Action, Send, Start, Transcribe
from omni_serve.realtime.config import Offer, ServerVad
from omni_serve.realtime.session import Session


def test_the_greeting_describes_the_session() -> None:
    (event,) = events(Session(offer=Offer()).begin())
    session = event["session"]
    assert event["type"] == "session.created"
    assert (session["type"], session["object"]) == ("realtime", "realtime.session")
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"


def test_a_text_turn_is_answered_in_speech() -> None:
    session = make()
    assert kinds(session.receive(user_text("hello"), 0)) == ["conversation.item.added", "conversation.item.done"]
    actions = session.receive({"type": "response.create"}, 0)
    assert kinds(actions) == ["response.created"]
    start = started(actions)
    assert start.messages == [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert kinds(session.text(start.reply, "Hi ")) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
    ]
    (delta,) = events(session.sound(start.reply, voice(0.2), RATE, 1.0))
    assert delta["type"] == "response.output_audio.delta"
    assert len(base64.b64decode(delta["delta"])) == 0.2 * RATE * 2
    assert kinds(session.text(start.reply, "you")) == ["response.output_audio_transcript.delta"]
    done = session.finished(start.reply, 2.0, {"prompt_tokens": 3, "completion_tokens": 4})
    assert kinds(done) == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    response = events(done)[-1]["response"]
    assert response["status"] == "completed"
    usage = response["usage"]
    assert (usage["total_tokens"], usage["input_tokens"], usage["output_tokens"]) == (7, 3, 4)
    assert response["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hi you"}]


def test_a_text_answer_has_no_sound() -> None:
    session = make()
    session.receive(update(output_modalities=["text"], instructions="Be brief."), 0)
    session.receive(user_text("hello"), 0)
    start = started(session.receive({"type": "response.create"}, 0))
    assert start.messages[0] == {"role": "system", "content": "Be brief."}
    assert kinds(session.text(start.reply, "Hi"))[-1] == "response.output_text.delta"
    assert session.sound(start.reply, voice(0.1), RATE, 0) == []
    assert kinds(session.finished(start.reply, 0, {}))[:2] == [
        "response.output_text.done",
        "response.content_part.done",
    ]


def test_voice_activity_makes_a_turn() -> None:
    session = make()
    sound = np.concatenate([silence(0.6), voice(1.0), silence(0.8)])
    found: list[Action] = []
    for start in range(0, len(sound), 480):
        found += session.receive(append(sound[start : start + 480]), start / RATE)
    assert kinds(found) == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]
    begun, ended, committed = events(found)[:3]
    assert begun["audio_start_ms"] == pytest.approx(300, abs=60)
    assert ended["audio_end_ms"] == pytest.approx(2100, abs=80)
    assert begun["item_id"] == ended["item_id"] == committed["item_id"]
    (message,) = started(found).messages
    seconds = (len(message["content"][0]["data"]) - 44) / 2 / 16_000
    assert seconds == pytest.approx((ended["audio_end_ms"] - begun["audio_start_ms"]) / 1000, abs=0.002)


def test_two_turns_in_one_event() -> None:
    session = make()
    session.receive(update(audio={"input": {"turn_detection": {"type": "server_vad", "create_response": False}}}), 0)
    turn = [silence(0.4), voice(0.7), silence(0.7)]
    found = session.receive(append(np.concatenate([*turn, *turn])), 0)
    assert kinds(found).count("input_audio_buffer.committed") == 2
    assert not any(isinstance(action, Start) for action in found)


def test_a_turn_by_hand() -> None:
    session = make()
    session.receive(MANUAL, 0)
    assert refused(session.receive({"type": "input_audio_buffer.commit"}, 0))["code"] == (
        "input_audio_buffer_commit_empty"
    )
    assert session.receive(append(voice(0.5)), 0) == []
    assert kinds(session.receive({"type": "input_audio_buffer.commit"}, 0)) == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    (message,) = started(session.receive({"type": "response.create"}, 0)).messages
    assert (len(message["content"][0]["data"]) - 44) / 2 == pytest.approx(8000, abs=2)


def test_clearing_the_buffer() -> None:
    session = make()
    session.receive(MANUAL, 0)
    session.receive(append(voice(1.0)), 0)
    assert kinds(session.receive({"type": "input_audio_buffer.clear"}, 0)) == ["input_audio_buffer.cleared"]
    assert session.buffered == 0


def speaking(session: Session, seconds: float = 4.0) -> tuple[str, str]:
    """Begin a reply of eight words in ``seconds``; return its id and its item's."""
    session.receive(user_text("hello"), 0)
    start = started(session.receive({"type": "response.create"}, 0))
    added = events(session.text(start.reply, "one two three four five six seven eight"))
    session.sound(start.reply, voice(seconds), RATE, 10.0)
    return start.reply, added[0]["item"]["id"]


def test_a_user_who_speaks_interrupts() -> None:
    session = make()
    reply, item = speaking(session)
    found = session.receive(append(np.concatenate([silence(0.3), voice(0.3)])), 12.0)
    names = kinds(found)
    assert names[0] == "input_audio_buffer.speech_started"
    assert names[-1] == "response.done"
    done = events(found)[-1]["response"]
    assert (done["status"], done["status_details"]) == (
        "cancelled",
        {"type": "cancelled", "reason": "turn_detected"},
    )
    assert [action for action in found if isinstance(action, Abort)] == [Abort(reply)]
    assert session.text(reply, "late") == []
    # Two seconds of four have passed: the user has not heard the second half.
    assert session.conversation.find(item).content[0].heard == "one two three four"
    exact = {"type": "conversation.item.truncate", "item_id": item, "content_index": 0, "audio_end_ms": 1000}
    assert kinds(session.receive(exact, 13)) == ["conversation.item.truncated"]
    found = session.receive(append(silence(1.0)), 13)
    assert started(found).messages[1] == {"role": "assistant", "content": "one two"}


@pytest.mark.parametrize("asks", [True, False])
def test_words_follow_their_sound_and_tell_what_was_heard(asks: bool) -> None:
    session = make()
    output = {"speed": 0.5, **({"timestamps": "word"} if asks else {})}
    session.receive({**MANUAL, "session": {**MANUAL["session"], "audio": {"output": output}}}, 0)
    session.receive(user_text("hello"), 0)
    start = started(session.receive({"type": "response.create"}, 0))
    session.text(start.reply, "one two. three")
    session.sound(start.reply, voice(1.0), RATE, 10.0, [Word("one", 0.25, 0.5)])
    found = events(
        session.sound(start.reply, voice(0.0), RATE, 11.0, [Word("two", 0.5, 0.75), Word("three", 0.75, 1.0)])
    )
    item = session.conversation.items[-1]
    assert found == asks * [
        {
            "type": "response.output_audio.words",
            "event_id": found[0]["event_id"] if asks else "",
            "response_id": start.reply,
            "item_id": item.id,
            "output_index": 0,
            "content_index": 0,
            "words": [{"word": "two", "start": 1.0, "end": 1.5}, {"word": "three", "start": 1.5, "end": 2.0}],
        }
    ]
    session.finished(start.reply, 11, {})
    cut = {"type": "conversation.item.truncate", "item_id": item.id, "content_index": 0, "audio_end_ms": 1600}
    session.receive(cut, 12)
    assert item.content[0].heard == "one two."


def test_a_finished_reply_that_still_plays_is_cut_too() -> None:
    session = make()
    reply, item = speaking(session)
    session.finished(reply, 10.5, {})
    found = session.receive(append(np.concatenate([silence(0.3), voice(0.3)])), 12.0)
    assert kinds(found) == ["input_audio_buffer.speech_started"]
    assert session.conversation.find(item).content[0].heard == "one two three four"


def test_a_reply_that_may_not_be_interrupted_comes_first() -> None:
    session = make()
    session.receive(update(audio={"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}}), 0)
    reply, _ = speaking(session)
    found = session.receive(append(np.concatenate([silence(0.3), voice(0.5), silence(0.8)])), 12.0)
    assert "input_audio_buffer.committed" in kinds(found)
    assert not any(isinstance(action, (Start, Abort)) for action in found)
    found = session.finished(reply, 13.0, {})
    assert kinds(found)[-2:] == ["response.done", "response.created"]
    assert started(found).reply != reply


def test_what_no_user_has_asked_for_is_answered_by_its_instructions() -> None:
    session = make()
    refused(session.receive({"type": "response.create"}, 0))
    greet = {"type": "response.create", "response": {"instructions": "Greet the user."}}
    start = started(session.receive(greet, 0))
    greeting = {"role": "user", "content": [{"type": "text", "text": "Greet the user."}]}
    assert start.messages == [{"role": "system", "content": "Greet the user."}, greeting]
    session.text(start.reply, "Hello.")
    session.finished(start.reply, 1, {})
    start = started(session.receive(greet, 0))
    assert start.messages[1:] == [{"role": "assistant", "content": "Hello."}, greeting]
    session.finished(start.reply, 1, {})
    assert (
        refused(session.receive({"type": "response.create"}, 0))["code"] == "conversation_empty"
    )  # nobody has said anything
    content = [{"type": "input_text", "text": "Say the time."}]
    item = {"type": "message", "role": "system", "content": content}
    session.receive({"type": "conversation.item.create", "item": item}, 0)
    start = started(session.receive({"type": "response.create"}, 0))
    assert start.messages[-1] == {"role": "user", "content": [{"type": "text", "text": "Say the time."}]}


def test_a_question_is_answered_again() -> None:
    session = make()
    reply, _ = speaking(session)
    session.finished(reply, 11, {})
    again = started(session.receive({"type": "response.create"}, 12))
    assert again.messages == [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


def test_a_reply_that_is_wanted_and_cannot_begin_is_an_error_event() -> None:
    session = make()
    session.receive(update(audio={"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}}), 0)
    reply, item = speaking(session)
    session.receive(append(np.concatenate([silence(0.3), voice(0.5), silence(0.8)])), 12.0)
    for each in list(session.conversation.items):
        if each.id != item:
            session.receive({"type": "conversation.item.delete", "item_id": each.id}, 12.5)
    session.conversation.items.clear()
    found = session.finished(reply, 13.0, {})
    assert kinds(found)[-2:] == ["response.done", "error"]
    assert events(found)[-1]["error"]["code"] == "conversation_empty"
    assert kinds(session.finished(reply, 13.0, {})) == []
    assert kinds(session.receive(user_text("hello"), 14)) == ["conversation.item.added", "conversation.item.done"]


def test_who_speaks_again_gets_one_answer_to_all_of_it() -> None:
    session = make()
    session.receive(append(np.concatenate([silence(0.3), voice(0.5)])), 1.0)
    session.receive(user_text("hello"), 1.0)
    session.receive({"type": "response.create"}, 1.0)  # while the user speaks
    found = session.receive(append(silence(0.8)), 2.0)
    assert "input_audio_buffer.committed" in kinds(found)
    assert "response.created" not in kinds(found)
    found = session.receive(append(voice(0.5)), 3.0)
    assert kinds(found)[-1] == "response.done"
    assert not any(isinstance(action, Start) for action in found)
    found = session.receive(append(silence(0.8)), 4.0)
    asked = [[part["type"] for part in message["content"]] for message in started(found).messages]
    assert asked == [["text"], ["audio"], ["audio"]]


def test_how_turns_are_found_is_the_servers_choice_where_the_client_says_nothing() -> None:
    vad = ServerVad(type="server_vad", threshold=0.7, silence_duration_ms=250)
    session = make(Offer(vad=vad))
    assert session.shown()["audio"]["input"]["turn_detection"] == vad.model_dump(exclude_none=True)
    session.receive(MANUAL, 0)
    session.receive(update(audio={"input": {"turn_detection": {"type": "server_vad", "threshold": 0.6}}}), 0)
    found = session.shown()["audio"]["input"]["turn_detection"]
    assert (found["threshold"], found["silence_duration_ms"]) == (0.6, 250)
    names = kinds(session.receive(append(np.concatenate([silence(0.5), voice(0.5), silence(0.35)])), 1.0))
    assert "input_audio_buffer.speech_stopped" in names


def test_few_recordings_are_written_down_at_once() -> None:
    session = make(transcriptions=2)
    session.receive(update(audio={"input": {"turn_detection": None, "transcription": {}}}), 0)
    asked: list[Transcribe] = []
    for _ in range(3):
        session.receive(append(voice(0.2)), 0)
        found = session.receive({"type": "input_audio_buffer.commit"}, 0)
        asked += [action for action in found if isinstance(action, Transcribe)]
    assert len(asked) == 2
    assert kinds(found)[-1] == "conversation.item.input_audio_transcription.failed"
    assert events(found)[-1]["error"]["code"] == "overloaded"
    session.transcribed(asked[0].item, "words", {})
    session.receive(append(voice(0.2)), 0)
    found = session.receive({"type": "input_audio_buffer.commit"}, 0)
    assert any(isinstance(action, Transcribe) for action in found)


def test_cancelling() -> None:
    session = make()
    assert refused(session.receive({"type": "response.cancel"}, 0))["code"] == "response_cancel_not_active"
    reply, _ = speaking(session)
    found = session.receive({"type": "response.cancel", "response_id": reply}, 11)
    assert Abort(reply) in found
    assert events(found)[-1]["response"]["status_details"]["reason"] == "client_cancelled"


def test_one_response_at_a_time() -> None:
    session = make()
    speaking(session)
    error = refused(session.receive({"type": "response.create", "event_id": "mine"}, 11))
    assert error["code"] == "conversation_already_has_active_response"
    assert error["event_id"] == "mine"


def test_a_failed_response_leaves_the_session_usable() -> None:
    session = make()
    reply, _ = speaking(session)
    response = events(session.failed(reply, 11, ApiError(503, "gone", code="unit_failed")))[-1]["response"]
    assert response["status"] == "failed"
    assert response["status_details"]["error"]["code"] == "unit_failed"
    assert started(session.receive({"type": "response.create"}, 12))


def test_an_answer_at_its_limit_is_incomplete() -> None:
    session = make()
    reply, _ = speaking(session)
    response = events(session.finished(reply, 11, {}, "length"))[-1]["response"]
    assert (response["status"], response["status_details"]["reason"]) == ("incomplete", "max_output_tokens")


def test_a_response_outside_of_the_conversation() -> None:
    session = make()
    session.receive(user_text("hello"), 0)
    given = {"conversation": "none", "output_modalities": ["text"], "metadata": {"a": "b"}, "input": [
        {"type": "item_reference", "id": "item_1"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "sum up"}]},
    ]}  # fmt: skip
    actions = session.receive({"type": "response.create", "response": given}, 0)
    start = started(actions)
    assert start.messages == [question("hello"), question("sum up")]
    assert events(actions)[0]["response"]["metadata"] == {"a": "b"}
    assert "conversation.item.added" not in kinds(session.text(start.reply, "x"))
    session.finished(start.reply, 0, {})
    assert len(session.conversation.items) == 1


def test_calls_of_tools() -> None:
    session = make()
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    session.receive(update(tools=[tool], output_modalities=["text"]), 0)
    session.receive(user_text("weather?"), 0)
    start = started(session.receive({"type": "response.create"}, 0))
    found = session.text(start.reply, '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>')
    assert kinds(found) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
    ]
    call = events(session.finished(start.reply, 0, {}))[-1]["response"]["output"][0]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "weather", '{"city": "Rome"}')
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    session.receive({"type": "conversation.item.create", "item": answer}, 0)
    messages = started(session.receive({"type": "response.create"}, 0)).messages
    assert messages[1]["tool_calls"][0]["function"]["name"] == "weather"
    assert messages[2] == {"role": "tool", "tool_call_id": call["call_id"], "content": "sunny"}


def test_items_are_retrieved_and_deleted() -> None:
    session = make()
    session.receive(MANUAL, 0)
    session.receive(append(voice(0.5)), 0)
    session.receive({"type": "input_audio_buffer.commit"}, 0)
    identity = session.conversation.items[0].id
    (event,) = events(session.receive({"type": "conversation.item.retrieve", "item_id": identity}, 0))
    assert len(base64.b64decode(event["item"]["content"][0]["audio"])) == pytest.approx(RATE, abs=8)
    assert kinds(session.receive({"type": "conversation.item.delete", "item_id": identity}, 0)) == [
        "conversation.item.deleted"
    ]
    assert refused(session.receive({"type": "conversation.item.delete", "item_id": identity}, 0))["code"] == (
        "item_not_found"
    )


def test_items_are_put_where_the_client_says() -> None:
    session = make()
    session.receive(user_text("b"), 0)
    for previous, text in (("root", "a"), ("item_1", "c")):
        session.receive({**user_text(text), "previous_item_id": previous}, 0)
    assert [item.content[0].text for item in session.conversation.items] == ["a", "b", "c"]


def test_an_image() -> None:
    session = make()
    part = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "what?"}, part]}
    assert refused(session.receive({"type": "conversation.item.create", "item": item}, 0))["param"] == (
        "item.content[1].image_url"
    )
    part["image_url"] = b"png"  # as it is after the server has read and checked it
    session.receive({"type": "conversation.item.create", "item": item}, 0)
    (message,) = started(session.receive({"type": "response.create"}, 0)).messages
    assert message["content"][1] == {"type": "image", "data": b"png"}


def test_turns_are_written_down() -> None:
    session = make()
    session.receive(update(audio={"input": {"turn_detection": None, "transcription": {"language": "en"}}}), 0)
    session.receive(append(voice(0.5)), 0)
    found = session.receive({"type": "input_audio_buffer.commit"}, 0)
    wanted = next(action for action in found if isinstance(action, Transcribe))
    assert wanted.language == "en"
    (event,) = events(session.transcribed(wanted.item, "hello", {}))
    assert (event["type"], event["transcript"]) == (
        "conversation.item.input_audio_transcription.completed",
        "hello",
    )
    assert session.transcribed(wanted.item, ApiError(503, "late"), {}) == []
    session.receive(append(voice(0.5)), 0)
    found = session.receive({"type": "input_audio_buffer.commit"}, 0)
    wanted = next(action for action in found if isinstance(action, Transcribe))
    (event,) = events(session.transcribed(wanted.item, ApiError(503, "gone"), {}))
    assert event["type"] == "conversation.item.input_audio_transcription.failed"


@pytest.mark.parametrize(
    ("bounds", "deleted"),
    [
        ({"history_mib": 0.13}, [0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 3]),
        ({"items": 5}, [0, 0, 0, 0, 0, 3, 0, 0, 3, 0, 0, 3]),
    ],
)
def test_what_is_kept_is_bounded_and_its_beginning_seldom_changes(bounds: dict[str, Any], deleted: list[int]) -> None:
    session, found = make(**bounds), list[int]()
    session.receive(MANUAL, 0)
    for _ in deleted:
        session.receive(append(voice(0.5)), 0)
        found.append(
            kinds(session.receive({"type": "input_audio_buffer.commit"}, 0)).count("conversation.item.deleted")
        )
        assert sum(item.size for item in session.conversation.items) <= bounds.get("history_mib", 1) * 2**20
    assert found == deleted


def test_a_turn_is_bounded() -> None:
    session = make(turn_seconds=1.0)
    found = session.receive(append(np.concatenate([silence(0.3), voice(3.0)])), 0)
    assert kinds(found).count("input_audio_buffer.committed") >= 1
    assert session.buffered <= 2.0
    session = make(turn_seconds=1.0)
    session.receive(MANUAL, 0)
    session.receive(append(voice(1.5)), 0)
    assert refused(session.receive(append(voice(0.1)), 0))["code"] == "input_audio_buffer_full"
    session = make()
    session.receive(append(silence(20)), 0)
    assert session.buffered < 2


@pytest.mark.parametrize(
    ("event", "param", "word"),
    [
        (update(voice="ash"), "session.voice", "audio.output.voice"),
        (update(modalities=["text"]), "session.modalities", "output_modalities"),
        (update(audio={"input": {"turn_detect": {}}}), "session.audio.input.turn_detect", "turn_detection"),
        (update(audio={"input": {"turn_detection": {"type": "server_vad", "threshold": 3}}}),
         "session.audio.input.turn_detection.threshold", "less than"),
        (update(audio={"output": {"format": {"type": "audio/pcm", "rate": 7999}}}),
         "session.audio.output.format.rate", "8000"),
        (update(audio={"input": {"format": {"type": "audio/pcm", "rate": 24000.5}}}),
         "session.audio.input.format.rate", "integer"),
        (update(audio={"output": {"format": {"type": "audio/pcmu", "rate": 16000}}}),
         "session.audio.output.format", "8000"),
        (update(audio={"output": {"format": "pcm16"}}), "session.audio.output.format", "dictionary"),
        (update(output_modalities=["audio", "text"]), "session.output_modalities", "at most 1"),
        ({"type": "session.update", "session": {}}, "session.type", "missing"),
        ({"type": "session.update", "session": {"type": "diary"}}, "session.type", "transcription"),
        ({"type": "session.update"}, "session", "object"),
        ({"type": "session.updte", "session": {}}, "type", "session.update"),
        ({"type": "output_audio_buffer.clear"}, "type", "truncate"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "audio", "base64"),
        ({"type": "input_audio_buffer.append", "sound": ""}, "audio", "base64"),
        ({"type": "response.create", "response": {"modalities": ["text"]}}, "response.modalities", "output_modalities"),
        ({"type": "conversation.item.create", "item": {"type": "massage"}}, "item.type", "message"),
        ({"type": "conversation.item.create", "item": {"type": "message", "role": "assistant", "content": [
            {"type": "text", "text": "x"}]}}, "item.content[0].type", "beta"),
        ({"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, "audio_end_ms": 1}, "item_id", "x"),
        ({"type": None}, "type", "None"),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_named(event: dict[str, Any], param: str, word: str) -> None:
    session = make()
    before = session.shown()
    error = refused(session.receive(event, 0))
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert word in error["message"]
    assert session.shown() == before
    left = weakref.ref(session)
    del session
    gc.collect()
    assert left() is None


def test_what_the_pipeline_cannot_do_is_refused() -> None:
    session = make(Offer(inputs=("text",), outputs=("text",), tools=None, transcribes=False))
    assert session.config.output_modalities == ["text"]
    assert refused(session.receive(append(voice(0.1)), 0))["param"] == "audio"
    for fields, param in (
        ({"output_modalities": ["audio"]}, "session.output_modalities"),
        ({"tools": [{"type": "function", "name": "f"}]}, "session.tools"),
    ):
        assert refused(session.receive(update(**fields), 0))["param"] == param


STEPS = st.lists(
    st.sampled_from(
        ["say", "voice", "silence", "commit", "clear", "create", "cancel", "text", "sound", "finish", "fail", "late",
         "truncate", "delete", "manual", "server", "patient", "retrieve", "see", "unsee"]
    ),
    max_size=40,
)  # fmt: skip


VAD = {"type": "server_vad", "silence_duration_ms": 200}
PATIENT = {**VAD, "interrupt_response": False}


def perform(session: Session, step: str, now: float, reply: str, item: str) -> list[Action]:
    """Do one step of a random session."""
    sent: dict[str, dict[str, Any]] = {
        "say": user_text("hello you"),
        "voice": append(voice(0.5)),
        "silence": append(silence(0.5)),
        "commit": {"type": "input_audio_buffer.commit"},
        "clear": {"type": "input_audio_buffer.clear"},
        "see": {"type": "input_image_buffer.append", "image": b"a picture"},
        "unsee": {"type": "input_image_buffer.clear"},
        "create": {"type": "response.create"},
        "cancel": {"type": "response.cancel"},
        "truncate": {"type": "conversation.item.truncate", "item_id": item, "content_index": 0, "audio_end_ms": 100},
        "delete": {"type": "conversation.item.delete", "item_id": item},
        "retrieve": {"type": "conversation.item.retrieve", "item_id": item},
        "manual": MANUAL,
        "server": update(audio={"input": {"turn_detection": VAD}}),
        "patient": update(audio={"input": {"turn_detection": PATIENT}}),
    }
    if step in sent:
        return session.receive(sent[step], now)
    if step in ("text", "late"):
        return session.text(reply if step == "text" else "resp_0", "some words ")
    if step == "sound":
        return session.sound(reply, voice(0.4), RATE, now)
    if step == "finish":
        return session.finished(reply, now, {})
    return session.failed(reply, now, ApiError(500, "x"))


@given(STEPS)
def test_any_order_of_events_leaves_the_session_consistent(steps: list[str]) -> None:
    session = make(items=6, turn_seconds=2.0)
    sent: list[dict[str, Any]] = []
    running: list[str] = []
    last = ""
    clock = itertools.count()

    def took(actions: list[Action]) -> None:
        nonlocal last
        for action in actions:
            if isinstance(action, Send):
                sent.append(action.event)
                if action.event["type"] == "response.done":
                    running.remove(action.event["response"]["id"])
            elif isinstance(action, Start):
                running.append(action.reply)
                last = action.reply

    for step in steps:
        now = next(clock) / 2
        items = session.conversation.items
        identity = items[-1].id if items else "none"
        reply = running[0] if running else last
        took(perform(session, step, now, reply, identity))
        # One response is in progress at most, and the session knows it.
        assert running == ([session.reply.id] if session.reply is not None else [])
        assert len({item.id for item in session.conversation.items}) == len(session.conversation.items) <= 7
        in_progress = [item for item in session.conversation.items if item.status == "in_progress"]
        assert all(session.reply is not None and item in session.reply.output for item in in_progress)
        assert session.buffered <= 4.0
    # Every response that was created is done once; no event of it comes before or after.
    open_now: set[str] = set()
    for event in sent:
        if event["type"] == "response.created":
            open_now.add(event["response"]["id"])
        elif event["type"] == "response.done":
            open_now.remove(event["response"]["id"])
        elif "response_id" in event:
            assert event["response_id"] in open_now
    assert open_now == set(running)
    # What was said to have been added is there, or was said to be deleted.
    added = [event["item"]["id"] for event in sent if event["type"] == "conversation.item.added"]
    deleted = [event["item_id"] for event in sent if event["type"] == "conversation.item.deleted"]
    assert sorted(set(added) - set(deleted)) == sorted(item.id for item in session.conversation.items)
    assert len(added) == len(set(added))


def test_items_of_the_system_are_refused_when_they_fill_the_conversation() -> None:
    content = [{"type": "input_text", "text": "x" * 1000}]
    item = {"type": "message", "role": "system", "content": content}
    session = make(items=3)
    made = [kinds(session.receive({"type": "conversation.item.create", "item": item}, 0.0))[0] for _ in range(4)]
    assert made == ["conversation.item.added"] * 3 + ["error"]
    session = make(history_mib=2500 / 2**20)
    for _ in range(2):
        session.receive({"type": "conversation.item.create", "item": item}, 0.0)
    [refused] = events(session.receive({"type": "conversation.item.create", "item": item}, 0.0))
    assert refused["error"]["code"] == "conversation_full"


def question(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


@pytest.mark.parametrize("by", ["truncate", "cancel", "barge-in"])
def test_a_question_after_an_answer_that_was_not_heard_is_a_message_of_its_own(by: str) -> None:
    session = make()
    session.receive(user_text("Tell me a story."), 0)
    reply = started(session.receive({"type": "response.create"}, 0)).reply
    if by == "truncate":
        session.text(reply, "Once upon a time")
        session.sound(reply, voice(2.0), RATE, 1)
        session.finished(reply, 3, {})
        item = session.conversation.items[-1].id
        cut = {"type": "conversation.item.truncate", "item_id": item, "content_index": 0, "audio_end_ms": 0}
        assert kinds(session.receive(cut, 3)) == ["conversation.item.truncated"]
    elif by == "cancel":
        assert "response.done" in kinds(session.receive({"type": "response.cancel"}, 1))
    else:
        found = session.receive(append(np.concatenate([silence(0.3), voice(0.8)])), 1)
        assert "response.done" in kinds(found)
        session.receive({"type": "input_audio_buffer.clear"}, 1)
    session.receive(user_text("What is your name?"), 4)
    messages = started(session.receive({"type": "response.create"}, 4)).messages
    assert messages == [question("Tell me a story."), question("What is your name?")]


def test_parts_of_an_item_stay_parts_and_items_stay_messages() -> None:
    session = make()
    for role, kind in (("system", "input_text"), ("assistant", "output_text"), ("user", "input_text")):
        content = [{"type": kind, "text": text} for text in ("one", "two")]
        item = {"type": "message", "role": role, "content": content}
        for _ in range(2):
            session.receive({"type": "conversation.item.create", "item": item}, 0)
    parts = [{"type": "text", "text": text} for text in ("one", "two")]
    messages = started(session.receive({"type": "response.create"}, 0)).messages
    assert messages == [{"role": role, "content": parts} for role in ("system", "assistant", "user") for _ in range(2)]
    reply = session.reply
    assert reply is not None
    session.finished(reply.id, 0, {})
    only = {"type": "response.create", "response": {"input": [item | {"role": "system"}]}}
    assert started(session.receive(only, 0)).messages[-1] == {"role": "user", "content": parts}


@pytest.mark.parametrize("paces", [False, True])
def test_sound_is_stretched_unless_the_pipeline_paces_it(paces: bool) -> None:
    session = make(Offer(paces=paces))
    session.receive(update(audio={"input": {"turn_detection": None}, "output": {"speed": 1.5}}), 0)
    session.receive(user_text("Hello"), 0)
    start = started(session.receive({"type": "response.create"}, 0))
    assert start.config.audio.output.speed == 1.5
    found = [*session.sound(start.reply, voice(3.0), RATE, 0), *session.finished(start.reply, 1, {})]
    sent = sum(
        len(base64.b64decode(each["delta"])) for each in events(found) if each["type"] == "response.output_audio.delta"
    )
    assert (sent == 3.0 * RATE * 2) is paces
