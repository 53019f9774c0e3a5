"""langchain-openai: conversations as its agents make them, streams, tools, media."""

from __future__ import annotations

import base64
from typing import Literal

import pytest
from client_voices import recording
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


@tool
def weather(text: str) -> str:
    """Say what the weather is."""
    return "rain"


@pytest.mark.parametrize("responses", [False, True])
@pytest.mark.parametrize(
    "messages",
    [
        [HumanMessage("hello there", name="bob")],
        [SystemMessage("hello there")],
        [HumanMessage("Greet me.", name="bob"), AIMessage("hello there", name="ann")],
    ],
)
def test_chats(messages: list[BaseMessage], responses: bool) -> None:
    said = ChatOpenAI(model="tones", use_responses_api=responses).invoke(messages)
    assert said.text == "hello there"
    assert said.usage_metadata["output_tokens"] == 2


@pytest.mark.parametrize("responses", [False, True])
def test_streams_and_tools(responses: bool) -> None:
    model = ChatOpenAI(model="tones", use_responses_api=responses)
    assert "".join(each.text for each in model.stream("hello there")) == "hello there"
    (call,) = model.bind_tools([weather]).invoke("hello there").tool_calls
    assert (call["name"], call["args"]) == ("weather", {"text": "hello there"})
    pieces = [call for each in model.bind_tools([weather]).stream("hello there") for call in each.tool_call_chunks]
    assert "".join(each["args"] or "" for each in pieces) == '{"text": "hello there"}'


class Place(BaseModel):
    """A place."""

    city: str
    size: Literal["large", "small"]
    people: list[int]


@pytest.mark.parametrize("responses", [False, True])
@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_structured_output(responses: bool, method: str) -> None:
    model = ChatOpenAI(model="tones", use_responses_api=responses)
    if method == "json_schema":
        assert model.with_structured_output(Place).invoke("where") == Place(city="one", size="large", people=[3])
    else:
        assert model.with_structured_output(None, method="json_mode").invoke("where, as JSON") == {}


def test_media() -> None:
    audio = {"type": "audio", "base64": base64.b64encode(recording()).decode(), "mime_type": "audio/wav"}
    picture = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}
    said = ChatOpenAI(model="tones").invoke([HumanMessage([{"type": "text", "text": "look"}, picture, audio])])
    assert [each.partition(":")[0] for each in said.text.split()] == ["look", "image", "audio"]
