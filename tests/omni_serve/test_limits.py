"""Limits of keys and of the server: who waits, who is refused, and what the answer says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from attrs import evolve
from omni_serve_clients import http_client, request_to, socket_to

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.auth import ANYONE, KeyLimits, KeyRing
from omni_serve.errors import ApiError
from omni_serve.limits import Admission
from omni_serve.settings import Limits

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLOW: dict[str, Any] = {"model": "tones", "messages": [{"role": "user", "content": "a b c"}], "pause": 0.6}
FAST: dict[str, Any] = {"model": "tones", "messages": [{"role": "user", "content": "a"}]}


def limited(
    pipe: AsyncPipe, of_key: KeyLimits | None = None, **settings: Any
) -> tuple[Application, httpx2.AsyncClient]:
    """An application with one key that has limits."""
    app = create_app(pipe, Settings(keys={"mine": "the secret"}, **settings))
    ring = app.state.server.keys
    ring.keys["mine"] = evolve(ring.keys["mine"], limits=of_key or KeyLimits())
    return app, http_client(app, headers={"authorization": "Bearer the secret"})


async def test_requests_per_minute(pipe: AsyncPipe) -> None:
    _, http = limited(pipe, KeyLimits(requests_per_minute=2))
    statuses = [(await http.post("/v1/chat/completions", json=FAST)).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    answer = await http.post("/v1/chat/completions", json=FAST)
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert answer.headers["x-should-retry"] == "true"
    assert (await http.get("/v1/models")).status_code == 200  # it costs nothing


async def test_seconds_of_speech_per_minute(pipe: AsyncPipe) -> None:
    _, http = limited(pipe, KeyLimits(audio_seconds_per_minute=0.15))
    body = {"model": "tones", "input": "one two", "response_format": "pcm"}
    assert (await http.post("/v1/audio/speech", json=body)).status_code == 200
    answer = await http.post("/v1/audio/speech", json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
    assert "seconds of sound" in answer.json()["error"]["message"]
    left = [answer.headers[f"x-ratelimit-{what}-audio-seconds"] for what in ("limit", "remaining")]
    assert left == ["0", "0"]  # rounded down


async def test_an_answer_that_is_broken_off_has_its_tokens_counted(pipe: AsyncPipe) -> None:
    app, _ = limited(pipe, KeyLimits(tokens_per_minute=0.001))
    asked = request_to(app, "/v1/chat/completions", SLOW | {"stream": True}, authorization="Bearer the secret")
    while b"content" not in (await asked.receive()).get("body", b""):
        pass
    await asked.to_app.put({"type": "http.disconnect"})
    await asked.task
    again = request_to(app, "/v1/chat/completions", FAST, authorization="Bearer the secret")
    assert (await again.receive())["status"] == 429
    await again.task


async def test_the_queue_is_bounded_in_length_and_time(pipe: AsyncPipe) -> None:
    app, http = limited(pipe, concurrent=1, queued=1, queue_seconds=0.6)
    first = request_to(app, "/v1/chat/completions", SLOW, authorization="Bearer the secret")
    while app.state.server.admission.running == 0:
        await asyncio.sleep(0.01)
    waiting = asyncio.ensure_future(http.post("/v1/chat/completions", json=FAST))
    while app.state.server.admission.waiting == 0:
        await asyncio.sleep(0.01)
    full = await http.post("/v1/chat/completions", json=FAST)
    assert (full.status_code, full.json()["error"]["code"]) == (429, "overloaded")
    late = await waiting
    assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_timeout")
    assert late.headers["x-should-retry"] == "true"
    await first.task
    assert (app.state.server.admission.running, app.state.server.admission.waiting) == (0, 0)


async def test_the_deadline_of_a_request(pipe: AsyncPipe) -> None:
    _, http = limited(pipe, request_seconds=0.2)
    answer = await http.post("/v1/chat/completions", json=SLOW)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")


async def test_draining_refuses_new_requests_and_finishes_the_running(pipe: AsyncPipe) -> None:
    app, http = limited(pipe)
    app.state.server.warm = True
    first = request_to(app, "/v1/chat/completions", SLOW, authorization="Bearer the secret")
    while app.state.server.admission.running == 0:
        await asyncio.sleep(0.01)
    draining = asyncio.ensure_future(app.state.server.admission.drain(10))
    await asyncio.sleep(0)
    answer = await http.post("/v1/chat/completions", json=FAST)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert (await http.get("/health/ready")).json()["status"] == "draining"
    assert await draining
    assert (await first.receive())["status"] == 200


async def test_web_pages_of_others_and_other_names_are_refused(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(hosts=("test",), cors_origins=("http://friend",)))
    async with http_client(app) as http:
        for headers, status in (
            ({}, 200),
            ({"origin": "http://test"}, 200),
            ({"origin": "http://friend"}, 200),
            ({"origin": "http://evil"}, 403),
            ({"origin": "null"}, 403),
            ({"host": "evil"}, 421),
            ({"host": "test:8000"}, 200),
        ):
            assert (await http.get("/v1/models", headers=headers)).status_code == status, headers
        for site, path, status in (
            ("cross-site", "/v1/models", 403),
            ("same-site", "/metrics", 403),
            ("cross-site", "/openapi.json", 403),
            ("same-origin", "/v1/models", 200),
            ("none", "/v1/models", 200),
            ("cross-site", "/", 200),  # a link to the page
            ("cross-site", "/docs", 200),
            ("cross-site", "/health", 200),
        ):
            assert (await http.get(path, headers={"sec-fetch-site": site})).status_code == status, (site, path)
        friend = {"sec-fetch-site": "cross-site", "origin": "http://friend"}
        assert (await http.get("/v1/models", headers=friend)).status_code == 200
        form = {"sec-fetch-site": "cross-site", "content-type": "text/plain"}
        answer = await http.post("/v1/chat/completions", content=b"{}", headers=form)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_origin")
        asked = {"origin": "http://friend", "access-control-request-method": "POST"}
        allowed = await http.options("/v1/chat/completions", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "http://friend"
    async with http_client(create_app(pipe, Settings())) as http:
        refused = await http.options("/v1/chat/completions", headers={**asked, "origin": "http://test"})
        assert "access-control-allow-origin" not in refused.headers


async def test_browsers_do_not_guess_what_an_answer_is(pipe: AsyncPipe) -> None:
    async with http_client(create_app(pipe, Settings(keys={"mine": "the secret"}))) as http:
        mine = {"authorization": "Bearer the secret"}
        chat = {"model": "tones", "messages": [{"role": "user", "content": "one"}], "stream": True}
        for answer in (
            await http.get("/v1/models", headers=mine),
            await http.get("/nowhere"),
            await http.get("/nowhere", headers=mine),
            await http.get("/docs"),
            await http.post("/v1/chat/completions", json=chat, headers=mine),
            await http.post("/v1/chat/completions", content=b"{", headers=mine),
        ):
            assert answer.headers.get_list("x-content-type-options") == ["nosniff"]


async def test_request_ids(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/health", headers={"x-request-id": "mine-1"})).headers["x-request-id"] == "mine-1"
    for bad in ("a b", "x" * 200, "<script>"):
        assert (await http.get("/health", headers={"x-request-id": bad})).headers["x-request-id"].startswith("req_")
    assert (await http.get("/nowhere")).headers["x-request-id"].startswith("req_")


async def test_a_waiting_request_that_is_cancelled_gives_nothing_back_twice() -> None:
    admission = Admission(Settings(concurrent=1))
    running, waiting = admission.admit(ANYONE), admission.admit(ANYONE)
    await running.__aenter__()
    task = asyncio.ensure_future(waiting.__aenter__())
    await asyncio.sleep(0)
    task.cancel()
    await running.__aexit__(None, None, None)  # before the cancelled task runs
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (admission.running, admission.waiting) == (0, 0)


@pytest.mark.parametrize("keys", [1, 2])
async def test_one_key_cannot_have_all_places(keys: int) -> None:
    """Nor the whole queue: the rest is for others, where there are some."""
    ring = KeyRing.open(None, {f"key {number}": f"a secret {number}" for number in range(keys)})
    admission = Admission(Settings(concurrent=4, queued=4, limits=Limits(key_share=0.75)), ring)
    greedy, modest = ring.keys["key 0"], evolve(ring.keys["key 0"], name="key 1")
    tasks = []
    with pytest.raises(ApiError) as refused:
        while True:
            tasks.append(asyncio.ensure_future(admission.admit(greedy).__aenter__()))
            await asyncio.sleep(0)
    assert (refused.value.status, refused.value.code) == (429, "overloaded")
    assert (admission.running, admission.waiting) == ((4, 4) if keys == 1 else (3, 3))
    if keys > 1:
        async with admission.admit(modest):
            assert (admission.running, admission.waiting) == (4, 3)
        assert (admission.running, admission.waiting) == (3, 3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/live/sessions", "/v1/audio/speech/stream"])
async def test_the_end_of_the_server_is_told_to_idle_sessions(pipe: AsyncPipe, path: str) -> None:
    app = create_app(pipe, Settings(model="tones"))
    admission = app.state.server.admission
    async with socket_to(app, path) as socket:
        while not admission.sessions:
            await asyncio.sleep(0)
        await admission.end_sessions(10)
        while (message := await socket.receive())["type"] != "websocket.close":
            told = json.loads(message["text"])
        assert (told["type"], told["error"]["code"], message["code"]) == ("error", "draining", 1012)
    assert not admission.sessions
