"""The door: what goes to the recogniser, what to the language model, and how transcripts come into its messages."""

from __future__ import annotations

from typing import Any

import pytest

from omni_assistant import hearing
from omni_assistant.door import create_door, merged, messages, opened, recordings, route, speech, waits
from omni_core.api import InvalidRequestError, OmniRequest, StagePayload, Transcript

STAGES: dict[str, Any] = {
    "asr": "asr-listen",
    "llm": "llm-prepare",
    "tts": "tts-say",
    "waits": ["door-door", "asr-listen"],
}
PICTURE = {"type": "image", "data": b"picture"}


def sound(data: bytes) -> dict[str, Any]:
    return {"type": "audio", "data": data}


def payload(inputs: Any, modalities: list[str] | None = None, name: str = "r") -> StagePayload:
    composed = {"params": {}, "metadata": {}, "modalities": modalities}
    return StagePayload(name, OmniRequest(inputs, composed=composed))


def asked(*contents: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": each} for each in contents], **more}


def through(inputs: dict[str, Any], texts: list[str]) -> Any:
    """Return the inputs of the language model."""
    request = payload(inputs)
    request.data = opened(request, several=True, **STAGES)
    waiting = StagePayload("r", request.request, messages(request))
    found = {"door-door": waiting}
    if request.data["places"]:
        found["asr-listen"] = StagePayload("r", request.request, {"texts": texts})
        assert waits("r", "asr-listen", found["asr-listen"]) is None
    assert waits("r", "door-door", waiting) == list(found)
    return merged(found).data


def test_texts_go_to_the_language_model_alone_and_unchanged() -> None:
    inputs = asked("hi", [{"type": "text", "text": "look"}, PICTURE], tools=[{"name": "f"}])
    request = payload(inputs)
    request.data = opened(request, several=True, **STAGES)
    assert route("r", request) == ["llm-prepare", "tts-say"]
    assert through(inputs, []) == inputs


def test_transcripts_take_the_places_of_recordings() -> None:
    inputs = asked([sound(b"1")], [PICTURE, sound(b"2")], "three")
    request = payload(inputs)
    request.data = opened(request, several=True, **STAGES)
    assert route("r", request) == ["llm-prepare", "asr-listen", "tts-say"]
    assert recordings(request) == asked([sound(b"1")], [sound(b"2")])
    assert b"2" not in str(messages(request)).encode(), "recordings go to the recogniser alone"
    assert through(inputs, ["one", "two"]) == asked("one", [PICTURE, {"type": "text", "text": "two"}], "three")


@pytest.mark.parametrize(
    ("inputs", "modalities", "arguments", "message"),
    [
        ({"text": "hi"}, None, {"several": True}, "inputs.messages: must be a list"),
        (asked("hi"), ["transcript"], {"several": True}, "there is no recording to write down"),
        (asked([sound(b"1")], [sound(b"2")]), None, {"several": False}, r"messages\[0\].content\[0\]: .* one recording for this"),
        (asked([sound(b"1")], [sound(b"2")]), ["transcript"], {"several": True}, "one recording for a transcript; put the"),
        (asked("hi"), ["speech", "text"], {"several": True}, "modalities: 'speech' speaks the text of the last message, and stands alone"),
        ({"messages": []}, ["speech"], {"several": True}, "'speech' speaks the text of the last message"),
        (asked("hi", [PICTURE, sound(b"1")]), None, {"several": True, "live": True}, r"messages\[1\].content\[1\]: .* still coming"),
    ],
)  # fmt: skip
def test_what_cannot_be_heard_is_refused(inputs: Any, modalities: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        opened(payload(inputs, modalities), **STAGES, **arguments)


def test_a_text_that_is_to_be_spoken_goes_to_the_voice_alone() -> None:
    request = payload(asked("one", "two", references=[{"path": "a"}]), ["speech"])
    request.data = opened(request, several=True, **STAGES)
    assert route("r", request) == ["tts-say"]
    assert speech(request) == {**asked("two"), "references": [{"path": "a"}]}


def test_recorded_voices_go_to_the_voice_and_nowhere_else() -> None:
    request = payload(asked("one", references=[{"path": "a"}]))
    request.data = opened(request, several=True, **STAGES)
    assert speech(request) == {"messages": [], "references": [{"path": "a"}]}
    assert messages(request)["inputs"] == asked("one")


def test_sound_that_is_still_coming_is_the_last_message() -> None:
    data = opened(payload(asked("hi")), several=True, live=True, **STAGES)
    assert (data["to"], data["places"]) == (["llm-prepare", "live", "tts-say"], [(1, 0)])
    assert data["recordings"] == []
    assert create_door(several=True, **STAGES) is not None


def hear(*recordings: bytes, name: str = "r") -> tuple[list[bytes], list[str]]:
    """Let a recogniser hear a request; return what it has heard, and the texts for the language model."""
    request = payload(asked(*([sound(each)] for each in recordings)), name=name)
    split = hearing.each(request)
    if split is None:
        request.data = Transcript(recordings[0].decode())
        return [recordings[0]], hearing.texts(request)["texts"]
    heard = {role: each.request.inputs["messages"][0]["content"][0]["data"] for role, each in split.items()}
    request.data = {role: Transcript(data.decode() + " ") for role, data in heard.items()}
    return list(heard.values()), hearing.texts(request)["texts"]


def test_recordings_of_earlier_turns_are_heard_once() -> None:
    assert hear(b"a") == ([b"a"], ["a"])
    assert hear(b"a", b"b") == ([b"b"], ["a", "b"])
    assert hear(b"x", b"y", b"a") == ([b"x", b"y"], ["x", "y", "a"])
    assert hear(b"x", b"y") == ([b"y"], ["x", "y"]), "something is heard of every request"
    assert hearing.each(payload(None)) is None, "of sound that is still coming"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "KEPT", 3)
    monkeypatch.setattr(hearing, "_heard", type(hearing._heard)())
    for number in range(5):
        hear(b"%d" % number, name=f"r{number}")
        hearing.each(payload(asked([sound(b"aborted")]), name=f"other {number}"))
    assert len(hearing._heard) == 3
    assert len(hearing._asked) <= 3
    assert hear(b"0", b"4", b"5") == ([b"0", b"5"], ["0", "4", "5"])


def test_transcripts_are_an_answer_where_they_are_asked_for() -> None:
    assert hearing.if_wanted(OmniRequest()) == []
    assert hearing.if_wanted(OmniRequest(modalities=["transcript"])) is None
