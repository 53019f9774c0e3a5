"""Requests out of what a chat is asked with."""

from __future__ import annotations

from typing import Any

import pytest

from omni_core.client.chat_request import MediaPolicy, Recording, chat_request
from omni_core.errors import InvalidRequestError, PluginError
from omni_core.interface import TEXT, VOICE, Interface, Parameter, ParameterGroup
from omni_core.plugins import PluginRegistry
from omni_core.protocol.messages import OmniRequest

INTERFACE = Interface(
    roles={TEXT: "write"},
    groups=[ParameterGroup("write", TEXT, "how it writes", [Parameter("temperature", "number", "heat")])],
    metadata=[Parameter(VOICE, "string", "the voice"), Parameter("priority", "integer", "first", aliases=["rank"])],
)


async def asked(messages: Any = "hi", interface: Interface | None = INTERFACE, **more: Any) -> OmniRequest:
    return await chat_request(interface, MediaPolicy(), messages, **more)


async def test_a_text_is_a_message_of_the_user() -> None:
    request = await asked(system="be brief", timeout=2.0, modalities=("text",))
    assert request.inputs == {
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    }
    assert (request.timeout, request.modalities) == (2.0, ["text"])


async def test_keywords_are_parameters_or_metadata() -> None:
    request = await asked(temperature=1, rank=3, voice="anna", params={"seed": 1}, metadata={"traceparent": "x"})
    assert request.params == {"temperature": 1, "seed": 1}
    assert request.metadata == {"rank": 3, VOICE: "anna", "traceparent": "x"}
    with pytest.raises(InvalidRequestError, match="temperature: given twice, here and in params"):
        await asked(temperature=1, params={"temperature": 2})


@pytest.mark.parametrize(
    ("name", "near"), [("speeker", "speaker"), ("voise", "voice"), ("timout", "timeout"), ("prioritty", "priority")]
)
async def test_a_misspelt_argument_is_named(name: str, near: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}: no such argument or parameter; did you mean '{near}'"):
        await asked(**{name: "x"})


async def test_a_voice_is_a_name_or_recordings() -> None:
    recordings = [Recording(b"wav", "its words"), Recording(([0.0, 0.5], 8000))]
    request = await asked(voice=recordings)
    first, second = request.inputs["references"]
    assert first == {"data": b"wav", "text": "its words"}
    assert (second["samples"].tolist(), second["sample_rate"], "text" in second) == ([0.0, 0.5], 8000, False)
    with pytest.raises(InvalidRequestError, match="voice: this pipeline has no voices"):
        await asked(voice="anna", interface=Interface())
    with pytest.raises(InvalidRequestError, match=r"voice\[0\]\.audio: no such file: .*nope\.wav"):
        await asked(voice=Recording("nope.wav"))


async def test_media_come_before_the_last_text() -> None:
    request = await asked(
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], image=b"x", audio=[b"y"]
    )
    image, audio, text = request.inputs["messages"][1]["content"]
    assert (image, audio) == ({"type": "image", "data": b"x"}, {"type": "audio", "data": b"y"})
    assert text == {"type": "text", "text": "b"}
    assert request.inputs["messages"][0]["content"] == "a"
    assert (await asked("", image=b"x")).inputs["messages"][0]["content"] == [{"type": "image", "data": b"x"}]


@pytest.mark.parametrize("messages", [[], 3, None, ["hi"], {"role": "user"}])
async def test_other_values_are_no_messages(messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match="messages: must be a text, or a non-empty list"):
        await asked(messages)


async def test_two_system_messages_are_one_too_many() -> None:
    with pytest.raises(InvalidRequestError, match=r"system: given twice, here and as messages\[0\]"):
        await asked([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], system="c")


async def test_text_needs_no_reader_of_media(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_core.services.load_plugins", lambda: PluginRegistry([]))
    assert (await asked("hi")).inputs["messages"] == [{"role": "user", "content": "hi"}]
    with pytest.raises(PluginError, match="pip install omni-media"):
        await asked("hi", image=b"x")


@pytest.mark.parametrize(
    ("name", "value"),
    [("params", "abc"), ("metadata", [1]), ("voice", ["a"]), ("voice", {"id": "a"}), ("voice", 1.5)],
)
async def test_arguments_of_another_type_are_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}: must be"):
        await asked(**{name: value})
