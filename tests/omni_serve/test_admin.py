"""The operator's endpoints: only there, only with the scope admin."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from attrs import evolve
from omni_serve_clients import http_client
from serve_stages import speaking_pipeline

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app
from omni_serve.admin import create_admin_app
from omni_serve.app import Application
from omni_serve.auth import KeyLimits, KeyRing
from omni_serve.kept_responses import Turn

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def public(pipe: AsyncPipe) -> Application:
    return create_app(pipe, Settings(drain_seconds=5))


@pytest.fixture(scope="module")
def admin(public: Application) -> httpx2.AsyncClient:
    return http_client(create_admin_app(public.state.server, keyless=True))


async def test_it_is_not_on_the_public_port(public: Application) -> None:
    async with http_client(public) as http:
        for path in ("/units", "/drain", "/profile/start", "/caches/flush", "/log-level"):
            assert (await http.post(path)).status_code == 404


async def test_it_needs_the_scope(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(keys={"mine": "the secret"}))
    ring = app.state.server.keys
    key = ring.add("operator", ["admin"])
    admin_app = create_admin_app(app.state.server)
    for headers, status in (
        ({}, 401),
        ({"authorization": "Bearer the secret"}, 403),
        ({"authorization": f"Bearer {key}"}, 200),
    ):
        async with http_client(admin_app, headers=headers) as http:
            assert (await http.get("/units")).status_code == status
            if status == 200:
                shown = (await http.get("/keys")).text
                assert "operator" in shown
                assert ring.keys["operator"].digest not in shown


async def test_it_needs_a_key_where_the_server_needs_none(pipe: AsyncPipe) -> None:
    settings = Settings(hosts=("public",), cors_origins=("http://friend",))
    app = create_app(pipe, settings)
    admin_app = create_admin_app(app.state.server, hosts=("test",))
    async with http_client(admin_app) as http:
        assert (await http.get("/units")).status_code == 401
        assert (await http.get("/units", headers={"host": "public"})).status_code == 421
        asked = {"origin": "http://friend", "access-control-request-method": "POST"}
        assert "access-control-allow-origin" not in (await http.options("/drain", headers=asked)).headers


async def test_a_socket_of_the_owner_needs_none(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(keys={"mine": "the secret"}))
    async with http_client(create_admin_app(app.state.server, keyless=True)) as http:
        assert (await http.get("/units")).status_code == 200
        assert (await http.get("/units", headers={"origin": "http://evil"})).status_code == 403


async def test_units_and_caches_and_log_levels(admin: httpx2.AsyncClient, public: Application) -> None:
    shown = (await admin.get("/units")).json()
    assert shown["units"]["p"]["state"] == "ready"
    assert shown["queue"] == {"running": 0, "waiting": 0, "draining": False}
    public.state.server.spoken.keep("audio_1", "anyone", "text")
    public.state.server.items.keep("msg_1", "anyone", "{}")
    public.state.server.responses.keep("resp_1", Turn("anyone", [], None, "s"))
    flushed = (await admin.post("/caches/flush")).json()
    assert flushed == {"spoken_answers": 1, "items": 1, "responses": 1, "stages": {"p": []}}
    try:
        answer = await admin.put("/log-level", json={"level": "debug", "logger": "omni_serve.test"})
        assert answer.json() == {"logger": "omni_serve.test", "level": "debug"}
        assert logging.getLogger("omni_serve.test").level == logging.DEBUG
    finally:
        logging.getLogger("omni_serve.test").setLevel(logging.NOTSET)
    answer = await admin.put("/log-level", json={"level": "loud"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "level")


async def test_a_profile_is_downloaded(admin: httpx2.AsyncClient, public: Application) -> None:
    assert (await admin.post("/profile/stop")).status_code == 409
    assert (await admin.post("/profile/start", json={"torch": ["wirte"]})).json()["error"]["param"] == "torch"
    assert (await admin.post("/profile/start")).status_code == 200
    assert (await admin.post("/profile/start")).status_code == 409
    async with http_client(public) as http:
        await http.post("/v1/audio/speech", json={"model": "tones", "input": "one"})
    answer = await admin.post("/profile/stop")
    assert "attachment" in answer.headers["content-disposition"]
    events = json.loads(answer.content)
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert any("speak" in str(event.get("name")) for event in events)


@pytest_asyncio.fixture(loop_scope="session")
async def own_pipe(pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncPipe]:
    """A pipeline that a test may hurt."""
    async with open_async(speaking_pipeline()) as own:
        yield own


async def test_a_unit_is_restarted(own_pipe: AsyncPipe) -> None:
    app = create_app(own_pipe, Settings())
    body: dict[str, Any] = {"model": "tones", "messages": [{"role": "user", "content": "one"}]}
    async with http_client(create_admin_app(app.state.server, keyless=True)) as admin, http_client(app) as http:
        assert (await admin.post("/units/q/restart")).status_code == 404
        answer = await admin.post("/units/p/restart")
        assert answer.status_code == 202
        async with asyncio.timeout(60):
            while (await admin.get("/units")).json()["units"]["p"]["restarts"] == 0:
                await asyncio.sleep(0.05)
            while own_pipe.health()["p"]["state"] != "ready":
                await asyncio.sleep(0.05)
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200


async def test_a_process_of_somebody_else_is_left_alone(
    admin: httpx2.AsyncClient, pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a process on another machine means another one here, or none."""
    health = {"p": {**pipe.health()["p"], "pids": [1]}}
    monkeypatch.setattr(AsyncPipe, "health", lambda self: health)
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, signal: killed.append(pid))
    answer = await admin.post("/units/p/restart")
    assert killed == []
    assert answer.status_code == 400
    assert "another machine" in answer.text


async def test_a_stage_is_replaced_and_scaled(own_pipe: AsyncPipe) -> None:
    pytest.importorskip("omni_cli.live")
    app = create_app(own_pipe, Settings())
    body: dict[str, Any] = {"model": "tones", "messages": [{"role": "user", "content": "one"}]}
    async with http_client(create_admin_app(app.state.server, keyless=True)) as admin, http_client(app) as http:
        answer = await admin.post("/stages/p/replace")
        assert answer.json() == {"group": "p", "started": ["p.1"], "ended": ["p"]}
        answer = await admin.post("/stages/p/scale", json={"replicas": 2, "wait": False})
        assert answer.json() == {"group": "p", "started": ["p.2"], "ended": []}
        assert set((await admin.get("/units")).json()["units"]) == {"p.1", "p.2"}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        wrong = [
            ("p/scale", {"replicas": 0}),
            ("q/replace", {}),
            ("p/scale", {}),
            ("p/replace", {"set": {"next": "p"}}),
        ]
        for path, asked in wrong:
            answer = await admin.post(f"/stages/{path}", json=asked)
            assert answer.status_code in (400, 422), (path, answer.text)
        stage = own_pipe.config.stages[0].name
        answer = await admin.post("/stages/p/replace", json={"set": {f"{stage}.factory": "nonesuch:f"}})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_changed")
        assert set(own_pipe.health()) == {"p.1", "p.2"}


async def test_keys_are_read_again(pipe: AsyncPipe, tmp_path: Path) -> None:
    ring = KeyRing(path=tmp_path / "keys.json")
    mine = ring.add("mine", limits=KeyLimits(requests_per_minute=1))
    ring.save()
    app = create_app(pipe, Settings(keys_file=ring.path))
    body: dict[str, Any] = {"model": "tones", "messages": [{"role": "user", "content": "one"}]}
    async with (
        http_client(create_admin_app(app.state.server, keyless=True)) as admin,
        http_client(app, headers={"authorization": f"Bearer {mine}"}) as http,
    ):
        statuses = [(await http.post("/v1/chat/completions", json=body)).status_code for _ in range(2)]
        assert statuses == [200, 429]
        ring.keys["mine"] = evolve(ring.keys["mine"], limits=KeyLimits())
        ring.save()
        assert (await admin.post("/keys/reload")).json() == {"keys": ["mine"]}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        del ring.keys["mine"]
        ring.save()
        assert (await admin.post("/keys/reload")).json() == {"keys": []}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 401
        assert ring.path is not None
        ring.path.unlink()
        answer = await admin.post("/keys/reload")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "keys_not_read")


async def test_a_drain(admin: httpx2.AsyncClient, public: Application) -> None:
    answer = await admin.post("/drain")
    assert (answer.status_code, answer.json()) == (200, {"drained": True, "running": 0})
    async with http_client(public) as http:
        answer = await http.post("/v1/audio/speech", json={"model": "tones", "input": "one"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert (await http.get("/health")).status_code == 200
