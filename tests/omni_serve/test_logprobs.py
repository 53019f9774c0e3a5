"""Log probabilities in the forms of OpenAI's APIs."""

from __future__ import annotations

from omni_core.api import TokenLogprob
from omni_serve.logprobs import of_completion_tokens


def test_offsets_are_places_in_the_text_where_tokens_are_parts_of_characters() -> None:
    data = [b"a", *(bytes([each]) for each in "🌱".encode()), "é ".encode(), b"b"]
    tokens = [TokenLogprob(each.decode(errors="replace"), each, -1.0, 0) for each in data]
    assert of_completion_tokens(tokens, 0)["text_offset"] == [0, 1, 1, 1, 1, 2, 4]
    assert of_completion_tokens(tokens[3:], 5)["text_offset"] == [4, 4, 5, 7]
