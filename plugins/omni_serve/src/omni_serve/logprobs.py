"""Log probabilities of the tokens of an answer: how a request asks for them, and their forms in OpenAI's APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_core.api import TOP_LOGPROBS, TokenLogprob
from omni_serve.errors import invalid
from omni_serve.server import Server


def ask_logprobs(server: Server, asked: bool | None, top: int | None, params: dict[str, Any]) -> None:
    """Put what a chat asks for into a request's parameters.

    Raises:
        ApiError: 400, the pipeline does not honour it, or the two fields contradict each other.
    """
    if not asked:
        if top:
            raise invalid("top_logprobs: needs logprobs: true", "top_logprobs", "invalid_value")
        return
    if not server.parameters.reads(TOP_LOGPROBS.name):
        raise invalid(
            "logprobs: only False is supported here: this pipeline tells none", "logprobs", "unsupported_value"
        )
    params[TOP_LOGPROBS.name] = top or 0


def of_chat_tokens(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the ``logprobs`` of a choice of a chat."""
    found = [{**_token(each), "top_logprobs": [_token(likely) for likely in each.top]} for each in tokens]
    return {"content": found, "refusal": None}


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


def of_completion_tokens(tokens: Sequence[TokenLogprob], begin: int) -> dict[str, Any]:
    """Return the ``logprobs`` of a choice of a completion. ``begin``: the characters of its text before them."""
    offsets = list[int]()
    for each in tokens:  # one that begins within a character is where that is
        begins = [byte & 0xC0 != 0x80 for byte in each.data]
        offsets.append(max(begin - (not begins[0] if begins else 0), 0))
        begin += sum(begins)
    return {
        "tokens": [each.text for each in tokens],
        "token_logprobs": [each.logprob for each in tokens],
        "top_logprobs": [{likely.text: likely.logprob for likely in (*reversed(each.top), each)} for each in tokens],
        "text_offset": offsets,
    }
