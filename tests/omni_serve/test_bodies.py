"""Bodies are bounded by what a route can use of them, and answers do not repeat them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
import websockets
from omni_serve_clients import http_client, running_server
from pydantic import BaseModel, ValidationError

from omni_core import AsyncPipe
from omni_serve import Settings, bodies, create_app
from omni_serve.admin import create_admin_app
from omni_serve.bodies import Base64, encoded
from omni_serve.chat import ChatRequest
from omni_serve.errors import ApiError
from omni_serve.forms import typed
from omni_serve.realtime.config import SessionConfig
from omni_serve.realtime.live import LiveStart
from omni_serve.responses import ResponsesRequest
from omni_serve.settings import Limits, RealtimeLimits

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT: dict[str, Any] = {"model": "tones", "messages": [{"role": "user", "content": "a"}]}
SPEECH: dict[str, Any] = {"model": "tones", "input": "a", "voice": "low"}
LONG = "x" * 50_000  # in JSON that is read at once


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"model": LONG}),
        ("/v1/chat/completions", CHAT | {LONG: 1}),
        ("/v1/chat/completions", CHAT | {"reasoning_effort": LONG}),
        ("/v1/chat/completions", CHAT | {"modalities": [LONG]}),
        ("/v1/chat/completions", CHAT | {"audio": {LONG: 1}}),
        ("/v1/chat/completions", CHAT | {"stage_sampling": {LONG: {}}}),
        ("/v1/chat/completions", CHAT | {"stage_sampling": {"speak": {LONG: 1}}}),
        ("/v1/chat/completions", CHAT | {"extra_body": {LONG: 1}}),
        ("/v1/chat/completions", CHAT | {"pause": LONG}),
        ("/v1/chat/completions", CHAT | {"pause": [LONG] * 5}),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": LONG}]}),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", LONG: 1}]}),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": [{"type": "text", LONG: 1}]}]}),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "assistant", "audio": {"id": LONG}}]}),
        ("/v1/chat/completions", CHAT | {"tools": [{"type": "function", "function": {"name": LONG}}]}),
        ("/v1/chat/completions", CHAT | {"tool_choice": LONG}),
        ("/v1/responses", {"model": "tones", "input": [{"type": LONG}]}),
        ("/v1/responses", {"model": "tones", "input": "a", LONG: 1}),
        ("/v1/responses", {"model": "tones", "input": "a", "tools": [{"type": LONG}]}),
        ("/v1/audio/speech", SPEECH | {"voice": LONG}),
        ("/v1/audio/speech", SPEECH | {"voice": {"id": LONG}}),
        ("/v1/audio/speech", SPEECH | {"response_format": LONG}),
        ("/v1/audio/speech", SPEECH | {LONG: 1}),
        ("/v1/realtime/client_secrets", {"session": {"type": LONG}}),
        ("/v1/realtime/client_secrets", {"session": {"type": "realtime", LONG: 1}}),
        ("/v1/realtime/client_secrets", {"session": {"type": "realtime", "audio": {LONG: 1}}}),
    ],
)
async def test_what_is_long_is_not_sent_back(http: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> None:
    answer = await http.post(path, json=body)
    if answer.status_code == 200:
        assert len(answer.headers["x-omni-ignored"]) < 200
        return
    assert 400 <= answer.status_code < 500, answer.text[:500]
    assert len(answer.content) < 5000
    assert "did you mean" not in answer.text


async def test_many_values_are_refused_on_every_route(pipe: AsyncPipe, http: httpx2.AsyncClient) -> None:
    many = b'{"model":"tones","input":[' + b"{}," * 60_000 + b"{}]}"
    assert len(many) < 2**20
    paths = ("chat/completions", "responses", "audio/speech", "images/generations", "realtime/client_secrets")
    kind = {"content-type": "application/json"}
    for path in paths:
        answer = await http.post(f"/v1/{path}", content=many, headers=kind)
        if path == "images/generations":
            assert answer.json()["error"]["code"] == "unsupported_operation"  # this pipeline makes none
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_values"), path
    admin = http_client(create_admin_app(create_app(pipe, Settings()).state.server, keyless=True))
    for path in ("/stages/speak/replace", "/stages/speak/scale", "/profile/start"):
        answer = await admin.post(path, content=many, headers=kind)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_values"), path
    answer = await admin.put("/log-level", content=many, headers=kind)
    assert answer.status_code == 413


async def test_a_body_is_as_large_as_its_route_needs(pipe: AsyncPipe) -> None:
    limits = Limits(text_body_mib=0.01, body_mib=0.1)
    async with http_client(create_app(pipe, Settings(limits=limits))) as http:
        space = " " * 20_000
        for path, body, status in (
            ("/v1/audio/speech", SPEECH, 413),
            ("/v1/realtime/client_secrets", {}, 413),
            ("/v1/chat/completions", CHAT, 200),
            ("/v1/responses", {"model": "tones", "input": "a"}, 200),
        ):
            kind = {"content-type": "application/json"}
            answer = await http.post(path, content=json.dumps(body) + space, headers=kind)
            assert answer.status_code == status, (path, answer.text)

            async def pieces(text: str = json.dumps(body) + space) -> Any:
                for start in range(0, len(text), 1000):  # without a length
                    yield text[start : start + 1000].encode()

            assert (await http.post(path, content=pieces(), headers=kind)).status_code == status, path


async def test_texts_beside_the_messages_are_as_small_as_other_texts(http: httpx2.AsyncClient) -> None:
    large = "x" * (2**20 + 1)
    for body in (CHAT | {"stop": [large]}, CHAT | {"metadata": {"a": large}}, CHAT | {"user": large}):
        answer = await http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    answer = await http.post("/v1/responses", json={"model": "tones", "input": "a", "instructions": large})
    assert answer.status_code == 413


async def test_bytes_in_an_answer_are_written_as_base64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_STEP", 3)
    data = {"a": Base64(b"\x00\xff5678"), "b": [Base64(b""), {"c": Base64(b"7")}], "d": 'é"'}
    expected = {"a": base64.b64encode(b"\x00\xff5678").decode(), "b": ["", {"c": "Nw=="}], "d": 'é"'}
    assert json.loads(await encoded(data)) == expected


async def test_speech_over_sockets_counts_as_sessions(pipe: AsyncPipe) -> None:
    settings = Settings(realtime=RealtimeLimits(sessions=2))
    async with running_server(create_app(pipe, settings)) as address, asyncio.timeout(60), AsyncExitStack() as stack:
        path = f"ws://{address}/v1/audio/speech/stream"
        for _ in range(2):
            socket = await stack.enter_async_context(websockets.connect(path))
            await socket.send(json.dumps({"type": "session.config", "model": "tones"}))
            assert json.loads(await socket.recv())["type"] == "session.started"
        async with websockets.connect(path) as socket:
            event = json.loads(await socket.recv())
        assert event["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("value", ["[" * 9000, "[" * 100_000, "1" * 5000, " " * 20_000 + "1"])
async def test_fields_of_forms_are_numbers_or_errors(value: str) -> None:
    with pytest.raises(ApiError, match="must be of the type integer"):
        typed("n", value, "integer")


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (ChatRequest, {"model": "m", "messages": [1] * 1000}),
        (ChatRequest, {"model": "m", "messages": [{}], "tools": [1] * 1000}),
        (ChatRequest, {"model": "m", "messages": [{}], "modalities": [1] * 1000}),
        (ResponsesRequest, {"model": "m", "input": "a", "tools": [1] * 1000}),
        (SessionConfig, {"tools": [1] * 1000}),
        (LiveStart, {"model": "m", "input": [1] * 1000}),
        (LiveStart, {"model": "m", "input": [{"type": "message", "role": "user", "content": [1] * 1000}]}),
    ],
)
async def test_a_list_of_wrong_items_is_one_problem(model: type[BaseModel], fields: dict[str, Any]) -> None:
    """Only the first is told, and each takes as long as ten values."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(fields)
    assert caught.value.error_count() <= 5


async def test_what_is_not_json_is_not_read(http: httpx2.AsyncClient) -> None:
    read = []

    async def pieces() -> AsyncIterator[bytes]:
        read.append(True)
        yield b"{}"

    for kind, code in (("text/plain", "invalid_json"), ("application/vnd.api+json", "missing_required_parameter")):
        answer = await http.post("/v1/chat/completions", content=pieces(), headers={"content-type": kind})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert len(read) == 1


async def test_the_operator_may_send_no_body(pipe: AsyncPipe) -> None:
    admin = http_client(create_admin_app(create_app(pipe, Settings()).state.server, keyless=True))
    form = {"content-type": "application/x-www-form-urlencoded"}
    for headers, content, status in ((form, b"", 200), ({}, b"", 409), (form, b"torch=a", 400)):
        answer = await admin.post("/profile/start", content=content, headers=headers)
        assert answer.status_code == status, answer.text
    assert (await admin.post("/profile/stop")).status_code == 200
