"""Keys on every route, HTTP and WebSocket, and what they may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute
from omni_serve_clients import http_client, socket_to

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.auth import KeyRing
from omni_serve.page import DOCS_PATHS

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "a long secret of mine"


@pytest.fixture(scope="module")
def ring_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    ring = KeyRing(path=path)
    keys = {scope: ring.add(scope, [scope]) for scope in ("inference", "voices", "metrics", "admin")}
    ring.save()
    return path, keys


@pytest.fixture(scope="module")
def guarded(
    pipe: AsyncPipe, ring_file: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Application:
    voices = tmp_path_factory.mktemp("voices")
    return create_app(pipe, Settings(keys_file=ring_file[0], keys={"mine": SECRET}, voices_dir=voices))


OPEN = {"/", "/health", "/health/ready", *DOCS_PATHS}


async def test_every_http_route_needs_a_key(guarded: Application) -> None:
    asked = 0
    paths = {path: list(operations) for path, operations in guarded.openapi()["paths"].items()}
    paths |= {"/openapi.json": ["get"], "/nowhere": ["get"], "/v1/realtime": ["get"]}
    found = [(route.path, list(route.methods)) for route in guarded.routes if isinstance(route, APIRoute)]
    async with http_client(guarded) as http:
        for path, methods in [*paths.items(), *found]:
            for method in methods:
                url = path.replace("{", "").replace("}", "")
                for headers in ({}, {"authorization": "Bearer wrong-key"}, {"authorization": f"Basic {SECRET}"}):
                    answer = await http.request(method, url, headers=headers)
                    if path not in OPEN:
                        assert answer.status_code == 401, (method, path)
                        assert answer.json()["error"]["type"] == "authentication_error"
                        asked += 1
    assert asked > 60


async def test_every_websocket_route_needs_a_key(guarded: Application) -> None:
    sockets = [route.path for route in guarded.routes if isinstance(route, APIWebSocketRoute)]
    assert "/v1/audio/speech/stream" in sockets
    for path in [*sockets, "/v1/nowhere"]:
        async with socket_to(guarded, path, accepted=False) as socket:
            message = await socket.receive()
            assert (message["type"], message["status"]) == ("websocket.http.response.start", 401)
    for headers in (
        {"authorization": f"Bearer {SECRET}"},
        {"sec_websocket_protocol": f"realtime, openai-insecure-api-key.{SECRET}"},
    ):
        async with socket_to(guarded, "/v1/audio/speech/stream", **headers):
            pass


async def test_the_sdk_with_and_without_the_key(guarded: Application) -> None:
    message: Any = [{"role": "user", "content": "one"}]
    for key, works in ((SECRET, True), ("wrong", False)):
        client = openai.AsyncOpenAI(
            api_key=key, base_url="http://test/v1", http_client=http_client(guarded), max_retries=0
        )
        if works:
            assert (await client.chat.completions.create(model="tones", messages=message)).choices
            continue
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.chat.completions.create(model="tones", messages=message)
        assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("scope", "method", "path", "status"),
    [
        ("inference", "GET", "/v1/models", 200),
        ("inference", "GET", "/metrics", 403),
        ("inference", "POST", "/v1/audio/voices", 403),
        ("inference", "GET", "/v1/audio/voices", 200),
        ("inference", "DELETE", "/v1/audio/voices/voice_1", 403),
        ("metrics", "GET", "/metrics", 200),
        ("metrics", "GET", "/v1/models", 403),
        ("metrics", "GET", "/health/ready", 200),
        ("voices", "DELETE", "/v1/audio/voices/voice_1", 404),
        ("voices", "DELETE", "/v1/audio/voice_consents/cons_1", 404),
        ("voices", "POST", "/v1/chat/completions", 403),
        ("admin", "GET", "/v1/models", 200),
        ("admin", "GET", "/metrics", 200),
    ],
)
async def test_scopes(
    guarded: Application, ring_file: tuple[Path, dict[str, str]], scope: str, method: str, path: str, status: int
) -> None:
    guarded.state.server.warm = True
    async with http_client(guarded, headers={"authorization": f"Bearer {ring_file[1][scope]}"}) as http:
        assert (await http.request(method, path)).status_code == status


async def test_units_are_shown_to_key_holders_only(guarded: Application) -> None:
    guarded.state.server.warm = True
    async with http_client(guarded) as http:
        assert (await http.get("/health/ready")).json() == {"status": "ready"}
        answer = await http.get("/health/ready", headers={"authorization": f"Bearer {SECRET}"})
        assert "units" in answer.json()


async def test_metrics_may_be_public(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(keys={"mine": SECRET}, public_metrics=True))
    async with http_client(app) as http:
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.get("/v1/models")).status_code == 401


async def test_a_short_lived_key_opens_conversations_only(guarded: Application) -> None:
    async with http_client(guarded) as http:
        bearer = {"authorization": f"Bearer {SECRET}"}
        lent = await http.post("/v1/realtime/client_secrets", headers=bearer, json={"session": {"type": "realtime"}})
        short = {"authorization": f"Bearer {lent.json()['value']}"}
        refused = await http.get("/v1/models", headers=short)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
        assert (await http.get("/health", headers=short)).status_code == 200
    async with socket_to(guarded, "/v1/realtime", **short):
        pass  # it is accepted
