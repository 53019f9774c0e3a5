"""The messages between processes: every one of them can be sent."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import attrs
import pytest

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
