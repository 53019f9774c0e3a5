"""Check the memory of a chat: failed turns, attachments, another try, files."""

from __future__ import annotations

import json
from pathlib import Path

from omni_cli.chat.conversation import Conversation, written


def test_a_turn_counts_once_it_is_answered() -> None:
    chat = Conversation("be kind")
    assert [message["role"] for message in chat.ask("hello")] == ["system", "user"]
    assert chat.messages() == [{"role": "system", "content": "be kind"}], "it failed"
    chat.ask("hello again")
    chat.answered("hi")
    assert chat.ask("more")[1:] == [
        {"role": "user", "content": [{"type": "text", "text": "hello again"}]},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": [{"type": "text", "text": "more"}]},
    ]


def test_attachments_stay_until_a_turn_with_them_is_answered() -> None:
    chat = Conversation()
    chat.attach("image", Path("/a.png"))
    assert chat.ask("what?")[-1]["content"][0] == {"type": "image", "path": "/a.png"}
    assert chat.ask("what?")[-1]["content"][0]["type"] == "image", "the first one failed"
    chat.answered("red")
    assert chat.ask("and now?")[-1]["content"] == [{"type": "text", "text": "and now?"}]


def test_again_takes_the_answer_back() -> None:
    chat = Conversation()
    assert chat.again() is None
    first = chat.ask("one")
    chat.answered("1")
    second = chat.ask("two")
    assert chat.again() == second, "it failed: nothing is taken back"
    chat.answered("2")
    assert chat.again() == second
    chat.answered("zwei")
    assert [message["content"] for message in chat.messages()][-1] == "zwei"
    chat.reset()
    assert chat.again() is None
    assert first


def test_files_of_a_conversation() -> None:
    chat = Conversation("short")
    chat.attach("image", Path("/a.png"))
    chat.ask("what?")
    chat.answered("größer")
    assert json.loads(written(chat.messages(), Path("x.json"))) == chat.messages()
    text = written(chat.messages(), Path("x.md"))
    assert text == "**system**: short\n\n**user**: [image: /a.png] what?\n\n**assistant**: größer\n"
