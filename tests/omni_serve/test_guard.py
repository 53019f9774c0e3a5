"""The gate before every route, also where the application is mounted in another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from attrs import evolve
from omni_serve_clients import http_client
from starlette.applications import Starlette
from starlette.routing import Mount

from omni_core import AsyncPipe
from omni_serve import Settings, create_app, guard
from omni_serve.auth import KeyLimits

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_mounted_application_asks_for_the_same_scopes_and_becomes_ready(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(keys={"mine": "the secret"}))
    inference = app.state.server.keys.add("inference", ["inference"])
    async with http_client(Starlette(routes=[Mount("/omni", app)])) as http:
        mine = {"authorization": f"Bearer {inference}"}
        for path, headers, status in (
            ("/omni/health", {}, 200),
            ("/omni/v1/models", {}, 401),
            ("/omni/v1/models", mine, 200),
            ("/omni/metrics", mine, 403),
            ("/omni/nowhere", {}, 401),
        ):
            assert (await http.get(path, headers=headers)).status_code == status, path
        async with asyncio.timeout(60):
            while (await http.get("/omni/health/ready")).status_code != 200:
                await asyncio.sleep(0.01)


async def test_a_key_over_its_limit_is_refused_before_its_body_is_read(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(keys={"mine": "the secret"}))
    ring = app.state.server.keys
    ring.keys["mine"] = evolve(ring.keys["mine"], limits=KeyLimits(requests_per_minute=1))
    read = []

    async def body() -> AsyncIterator[bytes]:
        read.append(True)
        yield b"{}"

    async with http_client(app, headers={"authorization": "Bearer the secret"}) as http:
        statuses = [(await http.post("/v1/chat/completions", content=body())).status_code for _ in range(3)]
    assert statuses == [400, 429, 429]
    assert len(read) == 1


async def test_a_key_with_its_requests_in_progress_is_refused_before_its_body_is_read(pipe: AsyncPipe) -> None:
    """Also while the first body still comes: bodies of one key are bounded in number."""
    app = create_app(pipe, Settings(keys={"mine": "the secret"}))
    ring = app.state.server.keys
    ring.keys["mine"] = evolve(ring.keys["mine"], limits=KeyLimits(concurrent=1))
    come, read = asyncio.Event(), []

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await come.wait()
        yield b"}"

    async def body() -> AsyncIterator[bytes]:
        read.append(True)
        yield b"{}"

    async with http_client(app, headers={"authorization": "Bearer the secret"}) as http:
        first = asyncio.ensure_future(http.post("/v1/chat/completions", content=slow()))
        while not app.state.server.admission._account(ring.keys["mine"]).held:
            await asyncio.sleep(0.01)
        for _ in range(2):
            answer = await http.post("/v1/chat/completions", content=body())
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "concurrent_requests_exceeded")
        assert read == []
        come.set()
        assert (await first).status_code == 400
        assert (await http.post("/v1/chat/completions", content=body())).status_code == 400
    assert app.state.server.admission._account(ring.keys["mine"]).held == 0


async def test_an_unexpected_error_has_the_form_of_the_others(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings())

    async def broken() -> None:
        raise RuntimeError("broken")

    app.add_api_route("/broken", broken)
    async with http_client(app) as http:
        answer = await http.get("/broken")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (500, "internal_error", "server_error")


async def test_a_body_that_never_ends_is_given_up(
    pipe: AsyncPipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_BODY_SECONDS", 0.05)

    async def drops(begun: bytes) -> AsyncIterator[bytes]:
        yield begun
        while True:
            yield b"\n"  # both parsers skip it
            await asyncio.sleep(0.01)

    async with http_client(create_app(pipe, Settings(voices_dir=tmp_path))) as http:
        part = b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\n'
        for path, kind, begun in (
            ("/v1/chat/completions", "application/json", b"{"),
            ("/v1/audio/voices", "multipart/form-data; boundary=x", part),
        ):
            async with asyncio.timeout(60):
                answer = await http.post(path, content=drops(begun), headers={"content-type": kind})
            assert (answer.status_code, answer.json()["error"]["code"]) == (408, "body_timeout")
