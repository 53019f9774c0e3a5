"""Lines of a batch: our form, OpenAI's, and what is neither."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_cli.batch.lines import line_id, parse

MESSAGES = [{"role": "user", "content": "hi"}]


def arguments(**values: Any) -> dict[str, Any]:
    line = parse(1, json.dumps(values).encode())
    assert line.problem is None, line.problem
    return line.arguments


def openai(url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": url, "body": body}


def test_plain_lines_are_arguments_of_a_chat() -> None:
    assert arguments(text="hi") == {"message": "hi"}
    assert arguments(messages=MESSAGES, image="a.png", temperature=0.5, voice=None, custom_id=7) == {
        "message": MESSAGES,
        "image": "a.png",
        "temperature": 0.5,
    }
    assert parse(3, b'{"text": "hi", "custom_id": 7}').custom_id == "7"


def test_openai_lines() -> None:
    body = {"model": "m", "messages": MESSAGES, "max_completion_tokens": 5, "n": 1, "stream": False, "user": "u"}
    line = parse(1, json.dumps(openai(**body, audio={"voice": "ethan", "format": "wav"}, seed=1)).encode())
    assert (line.problem, line.openai, line.custom_id, line.model) == (None, True, "a", "m")
    assert line.arguments == {"message": MESSAGES, "voice": "ethan", "max_tokens": 5, "seed": 1}
    assert arguments(**openai("/v1/audio/speech", input="hello", voice="ethan", response_format="wav", speed=1.0)) == {
        "message": "hello",
        "voice": "ethan",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("[1]", "must be a JSON object"),
        ("[" * 100_000, "is no JSON"),
        (json.dumps({"txt": "x"}), "either text or messages"),
        (json.dumps({"text": "x", "messages": MESSAGES}), "either text or messages"),
        (json.dumps({"text": 5}), "text: must be a text"),
        (json.dumps({"text": "x", "stream": True}), "stream: has no meaning"),
        (json.dumps(openai()), "body.messages: is missing"),
        (json.dumps(openai(messages=MESSAGES, n=2)), "body.n: must be 1"),
        (json.dumps(openai(messages=MESSAGES, stream=True)), "body.stream"),
        (json.dumps(openai(messages=MESSAGES, audio={"format": "mp3"})), "the format is wav"),
        (json.dumps(openai(messages=MESSAGES, image="/etc/passwd")), "body.image: no such parameter"),
        (json.dumps(openai("/v1/embeddings", input="x")), "url: must be /v1/chat/completions"),
        (json.dumps(openai("/v1/audio/speech", input="x", speed=2)), "body.speed"),
        (json.dumps({**openai(messages=MESSAGES), "extra": 1}), "extra: no such key"),
        (json.dumps({"body": [], "url": "/v1/chat/completions"}), "body: must be an object"),
    ],
)
def test_what_is_no_request_has_a_problem(text: str, words: str) -> None:
    line = parse(4, text.encode())
    assert words in str(line.problem)
    assert (line.number, line.id) == (4, line_id(text.encode()))
