"""Answers of a batch: a reply or an error as a line, in our form or in that of OpenAI's batch files."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from omni_cli.batch.journal import PREFIX
from omni_cli.batch.lines import SPEECH_URL, Line
from omni_core.api import InvalidRequestError, OverloadedError, PluginError, RequestFailedError, RequestTimeoutError
from omni_core.runtime_api import StageFailedError

ATTEMPTS = 3
"""Times that a request is tried whose process died."""

_DEATHS = ("ProcessDied", "PeerDiedError")


class Pipe(Protocol):
    """The methods that a batch needs of :class:`omni_core.client.AsyncPipe`."""

    async def chat(self, message: Any, **arguments: Any) -> Any:
        """Answer a message."""

    async def speak(self, text: str, **arguments: Any) -> Any:
        """Say a text."""


@frozen
class Answerer:
    """Answers lines.

    Args:
        defaults: arguments of every request; those of a line replace them.
        audio: where speech is saved; ``None``: nowhere.
        name: of the pipeline, for answers whose line names no model.
    """

    pipe: Pipe
    defaults: Mapping[str, Any]
    audio: Path | None
    name: str

    async def __call__(self, line: Line) -> dict[str, Any]:
        """Return the answer to a line.

        Raises:
            StageFailedError, OSError, PluginError: the pipeline or the disk is at its end, or a distribution is missing; further
                lines would only fail.
        """
        if line.problem is not None:
            return error_line(line, "InvalidRequestError", line.problem, retryable=False)
        try:
            reply = await self._reply(line)
        except Exception as error:  # what a line says, however odd, hurts only itself
            if _is_end(error):
                raise
            kind = getattr(error, "error_type", type(error).__name__)
            invalid = isinstance(error, InvalidRequestError | TypeError)
            message = getattr(error, "message", None) or str(error)
            kind = "InvalidRequestError" if invalid else kind
            return error_line(line, kind, message, retryable=retryable(error), stage=getattr(error, "stage", None))
        return self._reply_line(line, reply, await asyncio.to_thread(self._saved, line, reply))

    async def _reply(self, line: Line) -> Any:
        arguments = with_defaults(line.arguments, self.defaults)
        message = arguments.pop("message")
        ask = self.pipe.speak if line.url == SPEECH_URL else self.pipe.chat
        attempt = 1
        while True:
            try:
                return await ask(message, **arguments)
            except OverloadedError as error:
                await asyncio.sleep(error.retry_after)
            except RequestFailedError as error:
                if error.error_type not in _DEATHS or attempt == ATTEMPTS:
                    raise
                attempt += 1

    def _saved(self, line: Line, reply: Any) -> Path | None:
        """Write the speech of a reply; a name is never that of half a file."""
        if self.audio is None or not reply.audio:
            return None
        wanted = re.sub(r"[^\w.-]+", "_", line.custom_id or "")[:100]
        path = self.audio / f"{line.number:06d}{'-' if wanted else ''}{wanted}.wav"
        unfinished = path.with_suffix(".part.wav")
        reply.audio.save(unfinished)
        os.replace(unfinished, path)
        return path

    def _reply_line(self, line: Line, reply: Any, path: Path | None) -> dict[str, Any]:
        audio = {"path": str(path), "seconds": round(reply.audio.seconds, 3)} if path is not None else None
        usage = {
            "prompt_tokens": reply.usage.prompt_tokens,
            "completion_tokens": reply.usage.completion_tokens,
            "total_tokens": reply.usage.total_tokens,
        }
        if not line.openai:
            found = {"text": reply.text, "audio": audio, "finish_reason": reply.finish_reason, "usage": usage}
            notices = {"notices": reply.notices} if reply.notices else {}
            thoughts = {"reasoning": reply.reasoning} if reply.reasoning else {}
            return {**_head(line), **found, **thoughts, **notices, "error": None}
        model = line.model or self.name
        if line.url == SPEECH_URL:
            body: dict[str, Any] = {"object": "audio.speech", "model": model, "audio": audio, "usage": usage}
        else:
            message = {"role": "assistant", "content": reply.text, **({"audio": audio} if audio else {})}
            message |= {"reasoning_content": reply.reasoning} if reply.reasoning else {}
            choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
            body = {
                "id": f"chatcmpl-{reply.request_id}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": model,
                "choices": [choice],
                "usage": usage,
            }
        response = {"status_code": 200, "request_id": reply.request_id, "body": body}
        return {**_head(line), "response": response, "error": None}


def with_defaults(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line's arguments with ``defaults`` for those that it leaves out, ``params`` and ``metadata`` key by key."""
    arguments = {**defaults, **given}
    message = given.get("message")
    if isinstance(message, list) and message and isinstance(message[0], Mapping) and message[0].get("role") == "system":
        arguments.pop("system", None)
    for group in ("params", "metadata"):
        base, own = defaults.get(group) or {}, given.get(group) or {}
        if isinstance(own, Mapping):
            arguments[group] = {key: value for key, value in base.items() if key not in given} | dict(own)
    return arguments


def error_line(line: Line, kind: str, message: str, *, retryable: bool, stage: str | None = None) -> dict[str, Any]:
    """Return the answer to a line that could not be answered. ``stage`` is where it failed, if in a stage."""
    response = {"response": None} if line.openai else {}
    error = {"type": kind, "message": message, "retryable": retryable, **({"stage": stage} if stage else {})}
    return {**_head(line), **response, "error": {"code": kind, **error} if line.openai else error}


def retryable(error: Exception) -> bool:
    """Return whether the same request may succeed another time."""
    if isinstance(error, OverloadedError | RequestTimeoutError):
        return True
    return isinstance(error, RequestFailedError) and error.error_type in _DEATHS


def _is_end(error: Exception) -> bool:
    return (
        isinstance(error, StageFailedError | OSError | PluginError)
        or getattr(error, "error_type", "") == StageFailedError.__name__
    )


def _head(line: Line) -> dict[str, Any]:
    if line.openai:
        return {"id": PREFIX + line.id, "custom_id": line.custom_id}
    custom = {} if line.custom_id is None else {"custom_id": line.custom_id}
    return {"id": line.id, **custom, "line": line.number}
