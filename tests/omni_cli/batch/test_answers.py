"""Answers of a batch: replies and errors in both forms, speech as files, what is tried again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omni_cli.batch.answers import Answerer, with_defaults
from omni_cli.batch.lines import parse
from omni_core.errors import (
    InvalidRequestError,
    OverloadedError,
    PluginError,
    RequestFailedError,
    RequestTimeoutError,
    StageFailedError,
)

MESSAGES = [{"role": "user", "content": "hi"}]


class Sound:
    """Speech of a reply."""

    seconds = 1.5

    def save(self, path: Path) -> None:
        assert path.name.endswith(".part.wav")
        path.write_bytes(b"RIFF")


class Pipe:
    """Raises the errors that it was given, one per call, then answers."""

    def __init__(self, *errors: Exception, reasoning: str = "") -> None:
        self.errors = [*errors]
        self.reasoning = reasoning
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    async def chat(self, message: Any, **arguments: Any) -> Any:
        self.calls.append((message, arguments))
        if self.errors:
            raise self.errors.pop(0)
        usage = SimpleNamespace(prompt_tokens=1, completion_tokens=2, total_tokens=3)
        found = {"text": "hello", "audio": Sound(), "usage": usage, "finish_reason": "stop", "notices": []}
        return SimpleNamespace(**found, reasoning=self.reasoning, request_id="r")

    speak = chat


async def answered(pipe: Pipe, values: Any, audio: Path | None = None, **defaults: Any) -> dict[str, Any]:
    line = parse(12, values if isinstance(values, bytes) else json.dumps(values).encode())
    return await Answerer(pipe, defaults, audio, "demo")(line)


async def test_a_plain_answer(tmp_path: Path) -> None:
    answer = await answered(Pipe(), {"text": "hi", "custom_id": "a/b c"}, tmp_path)
    path = tmp_path / "000012-a_b_c.wav"
    assert answer.pop("id")
    assert answer == {
        "custom_id": "a/b c",
        "line": 12,
        "text": "hello",
        "audio": {"path": str(path), "seconds": 1.5},
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        "error": None,
    }
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


async def test_an_openai_answer() -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": MESSAGES}}
    answer = await answered(Pipe(), line)
    assert answer["id"].startswith("batch_req_")
    assert (answer["custom_id"], answer["error"], answer["response"]["status_code"]) == ("a", None, 200)
    body = answer["response"]["body"]
    assert (body["object"], body["model"], body["usage"]["total_tokens"]) == ("chat.completion", "demo", 3)
    choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    assert body["choices"] == [choice]
    thought = (await answered(Pipe(reasoning="Hm"), line))["response"]["body"]["choices"][0]["message"]
    assert thought == {"role": "assistant", "content": "hello", "reasoning_content": "Hm"}
    assert (await answered(Pipe(reasoning="Hm"), {"text": "hi"}))["reasoning"] == "Hm"
    bad = await answered(Pipe(InvalidRequestError("params.x: no such parameter")), line)
    assert bad["response"] is None
    assert bad["error"]["code"] == bad["error"]["type"] == "InvalidRequestError"


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (InvalidRequestError("no"), "InvalidRequestError", False),
        (RequestTimeoutError("r", "stage", "TimeoutError", "late"), "TimeoutError", True),
        (RequestFailedError("r", "stage", "ValueError", "bad"), "ValueError", False),
        (TypeError("unexpected keyword"), "InvalidRequestError", False),
    ],
)
async def test_errors_are_answers(error: Exception, kind: str, retryable: bool) -> None:
    answer = await answered(Pipe(error), {"text": "hi"})
    assert (answer["error"]["type"], answer["error"]["retryable"]) == (kind, retryable)
    assert answer["error"]["message"] in str(error)


async def test_a_line_that_is_no_request_asks_nothing() -> None:
    pipe = Pipe()
    answer = await answered(pipe, b"{")
    assert "is no JSON" in answer["error"]["message"]
    assert not pipe.calls


async def test_deaths_and_overload_are_tried_again() -> None:
    death = RequestFailedError("r", "stage", "ProcessDied", "killed")
    pipe = Pipe(OverloadedError("full", 0.0), death, death)
    assert (await answered(pipe, {"text": "hi"}))["text"] == "hello"
    answer = await answered(Pipe(death, death, death), {"text": "hi"})
    assert answer["error"]["retryable"]


async def test_the_end_of_the_pipeline_is_no_answer() -> None:
    for error in (StageFailedError("s", "dead"), RequestFailedError("r", "s", "StageFailedError", "dead")):
        with pytest.raises(type(error)):
            await answered(Pipe(error), {"text": "hi"})


async def test_what_a_line_says_comes_before_the_flags() -> None:
    pipe = Pipe()
    defaults = {"system": "short", "timeout": 5.0, "params": {"temperature": 1.0, "seed": 1}}
    await answered(pipe, {"text": "hi", "temperature": 0.5, "timeout": 9}, **defaults)
    params = {"params": {"seed": 1}, "metadata": {}}
    assert pipe.calls == [("hi", {"system": "short", "timeout": 9, "temperature": 0.5, **params})]
    own = [{"role": "system", "content": "long"}, *MESSAGES]
    assert "system" not in with_defaults({"message": own}, {"system": "short"})


async def test_whatever_a_line_raises_is_its_answer() -> None:
    answer = await answered(Pipe(AttributeError("no such thing")), {"text": "hi"})
    assert answer["error"]["type"] == "AttributeError"


@pytest.mark.parametrize("error", [PluginError("pip install omni-media"), OSError("no space left")])
async def test_what_would_fail_for_every_line_ends_the_batch(error: Exception) -> None:
    with pytest.raises(type(error)):
        await answered(Pipe(error), {"text": "hi"})
