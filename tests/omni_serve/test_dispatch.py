"""Endpoints that are called directly answer as all others do, and what is added to the application still comes first."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from omni_serve_clients import Connection, http_client, request_to
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.app import Application

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATH = "/v1/chat/completions"
CHAT = {"model": "tones", "messages": [{"role": "user", "content": "one"}]}


async def test_added_middleware_sees_every_request(pipe: AsyncPipe) -> None:
    seen = []

    class Middleware:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                seen.append(scope["path"])
            await self._app(scope, receive, send)

    app = create_app(pipe, Settings())
    app.add_middleware(Middleware)
    async with http_client(app) as http:
        assert (await http.post(PATH, json=CHAT)).status_code == 200
        assert (await http.get("/version")).status_code == 200
    assert seen == [PATH, "/version"]


async def test_a_route_that_comes_first_answers(pipe: AsyncPipe) -> None:
    async def mine(request: Request) -> Response:
        return PlainTextResponse("mine")

    app = create_app(pipe, Settings())
    app.router.routes.insert(0, Route(PATH, mine, methods=["POST"]))
    async with http_client(app) as http:
        assert (await http.post(PATH, json=CHAT)).text == "mine"
        assert (await http.get(PATH)).status_code == 405


async def test_what_an_endpoint_raises_is_answered(pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(pipe, Settings())
    async with http_client(app) as http:
        for body in (b"{", b'{"model": "tones"}'):
            answer = await http.post(PATH, content=body, headers={"content-type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        monkeypatch.setattr(app.state.server, "parameters", None)
        answer = await http.post(PATH, json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert answer.headers["x-request-id"]
        counted = (await http.get("/metrics")).text
    assert f'omni_requests_total{{endpoint="{PATH}",status="400"}} 2.0' in counted
    assert f'omni_requests_total{{endpoint="{PATH}",status="500"}} 1.0' in counted


async def test_a_client_that_goes_away_while_it_sends_is_no_error_of_the_server(
    pipe: AsyncPipe, app: Application, caplog: pytest.LogCaptureFixture
) -> None:
    for path, kind in ((PATH, "application/json"), ("/v1/audio/transcriptions", "multipart/form-data; boundary=x")):
        connection: Connection = request_to(app, path, CHAT, **{"content-type": kind})
        connection.to_app.get_nowait()
        connection.to_app.put_nowait({"type": "http.request", "body": b"--x", "more_body": True})
        connection.to_app.put_nowait({"type": "http.disconnect"})
        async with asyncio.timeout(60):
            await connection.task
        assert connection.from_app.get_nowait()["status"] == 499
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
