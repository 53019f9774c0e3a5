"""The messages of a request, as the chat template gets them."""

from __future__ import annotations

import pytest

from omni_qwen3.chat import Chat


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_chat_may_end_with_any_role(role: str) -> None:
    messages = [{"role": "user", "content": "Hello."}, {"role": role, "content": "Greet the user."}]
    made = Chat({"messages": messages}, ()).messages
    assert [each["role"] for each in made] == ["user", role]
    assert made[-1]["content"] == [{"type": "text", "text": "Greet the user."}]
