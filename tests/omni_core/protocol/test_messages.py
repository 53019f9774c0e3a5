"""The messages between processes: every one of them can be sent."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import attrs
import pytest

from omni_core.errors import InvalidRequestError
from omni_core.protocol import messages, operation_messages, process_messages, registry, specs
from omni_torch.processes import ranks

RANKS = [ranks.ItemMessage, ranks.WorkMessage, ranks.RankError]


def made_in(module: ModuleType) -> list[type]:
    """The attrs classes that a module defines."""
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type) and attrs.has(each) and each.__module__ == module.__name__
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hello there.", "Hello there."),
        (
            [
                {"type": "text", "text": "What"},
                {"type": "image", "path": "cat.jpg"},
                {"type": "text", "text": "is it?"},
            ],
            "What is it?",
        ),
        ([{"type": "audio", "data": b"RIFF"}], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_the_text_of_a_message_is_that_of_its_parts(content: Any, text: str) -> None:
    assert messages.text_of({"role": "user", "content": content}) == text


def test_every_message_is_registered() -> None:
    modules = (messages, operation_messages, process_messages, specs)
    made = [*(each for module in modules for each in made_in(module)), *RANKS]
    assert len(made) > 40
    assert not [message for message in made if message not in registry.names]


def test_a_request_without_inputs_is_equal_otherwise() -> None:
    request = messages.OmniRequest(
        {"messages": []},
        {"a": 1},
        ["text"],
        {"b": 2},
        stream=True,
        timeout=3.0,
        placement={"s": 1},
        composed={"params": {}},
    )
    assert all(getattr(request, each.name) != each.default for each in attrs.fields(messages.OmniRequest))
    assert request.without_inputs() == attrs.evolve(request, inputs=None)


@pytest.mark.parametrize(
    ("inputs", "composed", "streamed", "empty"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, None, False, False),
        ({"messages": []}, None, True, False),
        (None, None, True, False),
        (None, {"params": {}}, True, True),
        ({"messages": [], "references": []}, {"params": {}}, True, True),
    ],
)
def test_a_request_says_whether_its_input_is_a_stream(inputs: Any, composed: Any, streamed: bool, empty: bool) -> None:
    request = messages.OmniRequest(inputs, composed=composed)
    assert (request.is_streamed, request.may_be_empty) == (streamed, empty)


def test_a_text_that_comes_as_a_stream_has_no_message() -> None:
    assert messages.text_to_speak(messages.OmniRequest({"messages": []})) is None
    assert messages.text_to_speak(messages.OmniRequest({"messages": [], "references": []})) is None
    assert messages.text_to_speak(messages.OmniRequest(None)) is None, "of a part that another part streams to"
    assert messages.text_to_speak(messages.OmniRequest({"messages": [{"role": "user", "content": " Hi "}]})) == "Hi"
    wrong: list[Any] = [{}, {"messages": None}, {"messages": "Hi"}, [], "Hi"]
    for inputs in wrong:
        with pytest.raises(InvalidRequestError, match="non-empty list"):
            messages.text_to_speak(messages.OmniRequest(inputs))
