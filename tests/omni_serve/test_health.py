"""Ready is more than alive: warm, and every unit that a request needs serves; metrics; the version; the models."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from attrs import evolve
from omni_serve_clients import http_client, socket_to
from prometheus_client.parser import text_string_to_metric_families

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.health import warm_up

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Units:
    """A pipeline whose units are as a test says."""

    def __init__(self, pipe: AsyncPipe, **states: str) -> None:
        self._pipe = pipe
        self.states = states

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def health(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"stages": [name.split("@")[0]], "state": state, "restarts": 1, "reason": "it died", "pids": [0]}
            for name, state in self.states.items()
        }


def with_units(pipe: AsyncPipe, **states: str) -> Application:
    every = {"understand": "ready", "write": "ready", "speak": "ready", **states}
    app = create_app(Units(pipe, **every), Settings())  # type: ignore[arg-type]
    app.state.server.warm = True
    return app


TEXT = {"model": "tones", "messages": [{"role": "user", "content": "one"}]}
SPOKEN = {**TEXT, "modalities": ["text", "audio"]}


async def test_text_is_answered_while_speech_restarts(pipe: AsyncPipe, caplog: pytest.LogCaptureFixture) -> None:
    async with http_client(with_units(pipe, speak="restarting")) as http:
        assert (await http.post("/v1/chat/completions", json=TEXT)).status_code == 200
        for path, body in (
            ("/v1/chat/completions", SPOKEN),
            ("/v1/chat/completions", {**SPOKEN, "stream": True}),
            ("/v1/audio/speech", {"model": "tones", "input": "one"}),
        ):
            answer = await http.post(path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "unit_restarting")
            assert "try again" in error["message"]
            assert "other requests are served" in error["message"]
            assert "it died" not in answer.text
            assert "speak" not in answer.text
            identity = error["message"].rpartition("id ")[2]
            assert any(identity in line and "it died" in line and "'speak'" in line for line in caplog.messages)
            assert answer.headers["retry-after"] == "2"
            assert answer.headers["x-should-retry"] == "true"
        ready = await http.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "degraded")
        assert ready.json()["units"]["speak"]["state"] == "restarting"
        assert (await http.get("/health")).status_code == 200


async def test_a_failed_unit_that_text_needs(pipe: AsyncPipe) -> None:
    async with http_client(with_units(pipe, write="failed")) as http:
        answer = await http.post("/v1/chat/completions", json=TEXT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unit_failed")


async def test_one_replica_is_enough(pipe: AsyncPipe) -> None:
    async with http_client(with_units(pipe, **{"speak@1": "failed"})) as http:
        assert (await http.post("/v1/chat/completions", json=SPOKEN)).status_code == 200
        assert (await http.get("/health/ready")).status_code == 200


async def test_a_stage_of_which_nothing_answers_is_not_ready(pipe: AsyncPipe) -> None:
    async with http_client(with_units(pipe, speak="stalled")) as http:
        ready = await http.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "degraded")
        assert (await http.post("/v1/chat/completions", json=SPOKEN)).status_code == 200  # it may answer any moment
    async with http_client(with_units(pipe, **{"speak@1": "stalled"})) as http:
        assert (await http.get("/health/ready")).status_code == 200


async def test_ready_after_the_warm_up(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings())
    async with http_client(app) as http:
        answer = await http.get("/health/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "warming up")
        before = (await pipe.statistics())["coordinator"]["requests"]["completed"]
        await warm_up(app.state.server)
        assert (await http.get("/health/ready")).status_code == 200
        assert (await pipe.statistics())["coordinator"]["requests"]["completed"] == before + 1


async def test_no_warm_up(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(warm_up=False))
    before = (await pipe.statistics())["coordinator"]["requests"]["completed"]
    await warm_up(app.state.server)
    assert app.state.server.warm
    assert (await pipe.statistics())["coordinator"]["requests"]["completed"] == before


async def test_a_warm_up_that_fails_is_shown(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings())
    app.state.server.interface = evolve(app.state.server.interface, warmup=[{"no_such_field": 1}])
    await warm_up(app.state.server)
    async with http_client(app) as http:
        ready = await http.get("/health/ready")
    assert ready.status_code == 200
    assert "warm-up request 0 failed" in ready.json()["warm_up"]


async def test_metrics(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings())
    async with http_client(app) as http:
        await http.post("/v1/chat/completions", json={**SPOKEN, "stream": True})
        await http.post("/v1/chat/completions", json={**TEXT, "n": 0})
        await http.get("/somewhere/else")
        text = (await http.get("/metrics")).text
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    chat = ("endpoint", "/v1/chat/completions")
    assert found["omni_requests_total", chat, ("status", "200")] == 1
    assert found["omni_requests_total", chat, ("status", "400")] == 1
    assert found["omni_requests_total", ("endpoint", "other"), ("status", "404")] == 1
    for name in ("omni_request_ttft_seconds", "omni_audio_ttfa_seconds", "omni_audio_rtf"):
        assert found[(f"{name}_count",)] == 1
    assert found[("omni_audio_seconds_total",)] == pytest.approx(0.1, abs=0.01)
    assert found["omni_tokens_total", ("kind", "completion")] == 1
    assert found["omni_stage_queue", ("process", "p"), ("stage", "write")] == 0
    assert found["omni_unit_restarts_total", ("process", "p")] == 0
    assert found["omni_ready", ("pipeline", "tones")] == 0  # not warm


async def test_models_show_what_they_can(http: httpx2.AsyncClient) -> None:
    models = (await http.get("/v1/models")).json()["data"]
    assert [each["id"] for each in models] == ["tones", "tts-1"]
    can = (await http.get("/v1/models/tts-1")).json()["capabilities"]
    assert can["outputs"] == ["text", "audio"]
    assert can["voices"] == ["low", "high"]
    assert (can["speech"], can["transcription"], can["tools"]) == ("by instruction", "by instruction", True)
    assert can["sample_rate"] == 24_000
    assert can["plain_parameters"] == "writer"
    assert can["parameters"]["writer"][0]["name"] == "temperature"
    assert not any("multiple_of" in each for group in can["parameters"].values() for each in group)
    assert (await http.get("/v1/models/other")).status_code == 404
    assert (await http.get("/version")).json()["pipeline"] == "tones"


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
async def test_health_is_asked_for_without_a_body_too(http: httpx2.AsyncClient, path: str) -> None:
    answer, whole = await http.head(path), await http.get(path)
    assert (answer.status_code, answer.content) == (whole.status_code, b"")
    assert answer.headers["content-length"] == str(len(whole.content))
    assert "head" not in (await http.get("/openapi.json")).json()["paths"][path]


async def test_unknown_sockets_are_not_found(app: Application) -> None:
    for path in ("/v1/responses", "/v1/nothing"):
        async with socket_to(app, path, accepted=False) as socket:
            answer = await socket.receive()
            assert (answer["type"], answer["status"]) == ("websocket.http.response.start", 404)


async def test_unknown_paths_and_methods(http: httpx2.AsyncClient) -> None:
    answer = await http.get("/v1/nothing")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    answer = await http.get("/v1/chat/completions")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
