"""The lines of a batch: ours, whose keys are the arguments of ``AsyncPipe.chat``, and those of OpenAI's batch files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

CHAT_URL, SPEECH_URL = "/v1/chat/completions", "/v1/audio/speech"

_IGNORED = ("model", "user", "store", "service_tier")
"""Keys of OpenAI's bodies that change nothing here: the command names the pipeline, and there are no accounts."""

_OURS = ("image", "audio", "video", "system", "voice", "modalities", "timeout", "params", "metadata")


class LineError(ValueError):
    """A line is no request."""


@frozen
class Line:
    """A line of the input.

    Attributes:
        number: counted from 1.
        id: a hash of its content.
        openai: the answer has OpenAI's form.
        url: of an OpenAI line: which kind of request it is.
        arguments: those of ``AsyncPipe.chat``; the first is ``message``.
        problem: why it is no request.
    """

    number: int
    id: str
    custom_id: str | None = None
    openai: bool = False
    url: str = ""
    model: str = ""
    arguments: dict[str, Any] = field(factory=dict)
    problem: str | None = None


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the lines of a file that are not blank."""
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text := text.strip():
                yield number, text


def line_id(text: bytes) -> str:
    """Return the hash of a line's content."""
    return hashlib.sha256(text).hexdigest()[:24]


def parse(number: int, text: bytes) -> Line:
    """Return the line; one that is no request has a ``problem``."""
    name = line_id(text)
    try:
        values = json.loads(text)
        if not isinstance(values, dict):
            raise LineError(f"must be a JSON object, is {values!r:.60}")
    except (LineError, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, LineError) else f"is no JSON: {error}"
        return Line(number, name, problem=reason)
    given = values.get("custom_id")
    line = Line(number, name, None if given is None else str(given), openai="body" in values)
    try:
        if not line.openai:
            return evolve(line, arguments=_plain(values))
        url, arguments = _openai(values)
        return evolve(line, url=url, model=str(values["body"].get("model", "")), arguments=arguments)
    except LineError as error:
        return evolve(line, problem=str(error))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if name != "custom_id" and value is not None}
    for name in ("stream", "request_id"):
        if name in given:
            raise LineError(f"{name}: has no meaning in a batch; leave it out")
    if ("text" in given) + ("messages" in given) != 1:
        raise LineError("must have either text or messages")
    if "text" in given and not isinstance(given["text"], str):
        raise LineError(f"text: must be a text, is {given['text']!r:.60}")
    return {"message": given.pop("text") if "text" in given else given.pop("messages"), **given}


def _openai(values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the URL and the arguments of an OpenAI line. What a body has beyond these keys is a parameter of the pipeline."""
    for name in values:
        if name not in ("custom_id", "method", "url", "body"):
            raise LineError(f"{name}: no such key; there are: custom_id, method, url, body")
    url, body = values.get("url", CHAT_URL), values["body"]
    if values.get("method", "POST") != "POST":
        raise LineError(f"method: must be POST, is {values['method']!r}")
    if not isinstance(body, dict):
        raise LineError("body: must be an object")
    rest = {name: value for name, value in body.items() if name not in _IGNORED and value is not None}
    if url == SPEECH_URL:
        return url, _speech(rest)
    if url != CHAT_URL:
        raise LineError(f"url: must be {CHAT_URL} or {SPEECH_URL}, is {url!r}")
    if "messages" not in rest:
        raise LineError("body.messages: is missing")
    for name in ("request_id", *_OURS):
        if name in rest and name not in ("audio", "modalities"):
            raise LineError(f"body.{name}: no such parameter")
    if rest.pop("n", 1) != 1:
        raise LineError("body.n: must be 1; write several lines")
    if rest.pop("stream", False):
        raise LineError("body.stream: must be false in a batch")
    audio = rest.pop("audio", {})
    if not isinstance(audio, dict) or audio.get("format", "wav") != "wav":
        raise LineError("body.audio: must be an object with a voice; the format is wav")
    if "max_completion_tokens" in rest:
        rest["max_tokens"] = rest.pop("max_completion_tokens")
    voice = {"voice": audio["voice"]} if audio.get("voice") is not None else {}
    return url, {"message": rest.pop("messages"), **voice, **rest}


def _speech(rest: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(rest.get("input"), str):
        raise LineError("body.input: must be a text")
    if rest.pop("response_format", "wav") != "wav":
        raise LineError("body.response_format: must be wav")
    if rest.pop("speed", 1) != 1:
        raise LineError("body.speed: must be 1")
    return {"message": rest.pop("input"), **rest}
