"""Answers in pieces: comments keep an idle connection open, and the status is sent although nothing has come yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from omni_serve_clients import request_to
from starlette.types import Message

from omni_core import AsyncPipe
from omni_serve import Settings, create_app, streams

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY: dict[str, Any] = {
    "model": "tones",
    "messages": [{"role": "user", "content": "a b"}],
    "pause": 0.3,
    "stream": True,
}


async def test_the_status_and_comments_come_while_nothing_else_does(
    pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEADERS_AFTER", 0.05)
    connection = request_to(create_app(pipe, Settings(ping_seconds=0.1)), "/v1/chat/completions", BODY)
    assert (await connection.receive())["status"] == 200
    pieces = []
    while (message := await connection.receive()).get("more_body"):
        pieces.append(message["body"])
    assert pieces[0] == b""
    assert pieces.count(b": ping\n\n") >= 2
    assert pieces[-1].endswith(b"data: [DONE]\n\n")
    await connection.task


async def test_an_error_after_the_status_is_an_event(pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEADERS_AFTER", 0.0)
    app = create_app(pipe, Settings(request_seconds=0.2))
    connection = request_to(app, "/v1/chat/completions", BODY)
    assert (await connection.receive())["status"] == 200
    body = b""
    while (message := await connection.receive()).get("more_body"):
        body += message["body"]
    assert b'"code":"timeout"' in body + message["body"]
    await connection.task


async def test_a_client_that_reads_no_more_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEND_SECONDS", 0.01)
    events: list[str] = []

    async def pieces() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"piece"
        finally:
            events.append("closed")

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    scope = {"type": "http", "extensions": {streams.ABORT: {"abort": lambda: events.append("aborted")}}}
    async with asyncio.timeout(60):
        await streams.Stream(pieces(), "audio/wav")(scope, receive, send)
    assert events == ["closed", "aborted"]
    assert scope["omni.status"] == 499
