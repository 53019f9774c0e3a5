"""The log of requests, of what operators trace, and the thread that writes it."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from omni_serve_clients import http_client, socket_to
from serve_stages import RATE, tone

from omni_core import AsyncPipe
from omni_core.cli.logs import JsonFormatter, TextFormatter
from omni_serve import Settings, create_app
from omni_serve.admin import create_admin_app
from omni_serve.encoders import whole
from omni_serve.logs import Audit, Background, in_background

on_the_loop = pytest.mark.asyncio(loop_scope="session")

SECRET = "the secret of the log"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "omni.access")
    caplog.set_level(logging.INFO, "omni.audit")
    return caplog


def fields_of(lines: pytest.LogCaptureFixture, logger: str) -> list[dict[str, Any]]:
    return [getattr(each, "fields", {}) for each in lines.records if each.name == logger]


@on_the_loop
async def test_every_request_is_a_line(pipe: AsyncPipe, lines: pytest.LogCaptureFixture) -> None:
    app = create_app(pipe, Settings(keys={"mine": SECRET}))
    async with http_client(app) as http:
        mine = {"authorization": f"Bearer {SECRET}", "x-request-id": "asked-1"}
        await http.get("/v1/models/tones", headers=mine)
        await http.get("/health")
        for shown_by_a_page in ("/page/app.js", "/v1/omni/pipeline"):
            assert (await http.get(shown_by_a_page, headers=mine)).status_code == 200
        await http.get("/no/%0d%0aforged/sk-omni-abcdefg?key=" + SECRET, headers=mine)
        await http.post("/v1/chat/completions", json={"model": "tones", "messages": []}, headers=mine)
    async with socket_to(app, "/v1/realtime", authorization=f"Bearer {SECRET}") as socket:
        await socket.receive()
    async with socket_to(app, "/v1/realtime", accepted=False) as socket:
        assert (await socket.receive())["status"] == 401
    found = fields_of(lines, "omni.access")
    assert [(each.get("key"), each["method"], each["route"], each["status"]) for each in found] == [
        ("mine", "GET", "/v1/models/{model}", 200),
        (None, "GET", "/health", 200),
        ("mine", "GET", r"/no/\r\nforged/sk-...", 404),
        ("mine", "POST", "/v1/chat/completions", 400),
        ("mine", "WEBSOCKET", "/v1/realtime", 101),
        (None, "WEBSOCKET", "/v1/realtime", 401),
    ]
    assert all(each["seconds"] >= 0 and each["client"] for each in found)
    assert SECRET not in lines.text
    first = next(each for each in lines.records if each.name == "omni.access")
    document = json.loads(JsonFormatter().format(first))
    assert (document["logger"], document["request_id"], document["status"]) == ("omni.access", "asked-1", 200)
    assert "status=200" in TextFormatter().format(first)


@on_the_loop
async def test_requests_are_counted_by_key(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(keys={"mine": SECRET}))
    async with http_client(app, headers={"authorization": f"Bearer {SECRET}"}) as http:
        await http.get("/v1/models")
        await http.get("/v1/models/none")
        text = (await http.get("/metrics")).text
    assert 'omni_key_requests_total{key="mine",status="200"} 1.0' in text
    assert 'omni_key_requests_total{key="mine",status="404"} 1.0' in text


@on_the_loop
async def test_no_line_is_made_where_nobody_wants_it(pipe: AsyncPipe, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "omni.access")
    async with http_client(create_app(pipe, Settings())) as http:
        await http.get("/health")
    assert not fields_of(caplog, "omni.access")


@on_the_loop
async def test_refused_keys_uploads_and_operations_are_traced(
    pipe: AsyncPipe, tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    app = create_app(pipe, Settings(keys={"mine": SECRET}, voices_dir=tmp_path))
    async with http_client(app, headers={"authorization": f"Bearer {SECRET}"}) as http:
        assert (await http.get("/v1/models", headers={"authorization": "Bearer sk-omni-wrong"})).status_code == 401
        recording = {"audio_sample": ("a.wav", whole("wav", [tone("x")], RATE), "audio/wav")}
        made = await http.post("/v1/audio/voices", data={"name": "Anna", "text": "a"}, files=recording)
        voice = made.json()["id"]
        assert (await http.delete(f"/v1/audio/voices/{voice}")).status_code == 200
        assert (await http.delete(f"/v1/audio/voices/{voice}")).status_code == 404
        assert (await http.get("/v1/audio/voices")).status_code == 200
    async with http_client(create_admin_app(app.state.server, keyless=True)) as operator:
        await operator.get("/units")
        await operator.put("/log-level", json={"level": "info", "logger": "omni_serve.test"})
    found = fields_of(lines, "omni.audit")
    assert [(each.get("code"), each.get("key"), each.get("path"), each.get("status")) for each in found] == [
        ("invalid_api_key", None, None, None),
        (None, "mine", "/v1/audio/voices", 200),
        (None, "mine", f"/v1/audio/voices/{voice}", 200),
        (None, "mine", f"/v1/audio/voices/{voice}", 404),
        (None, "anyone", "/log-level", 200),
    ]
    assert found[1]["created"] == voice
    assert "wrong" not in lines.text


def test_guessing_of_keys_does_not_fill_the_log(lines: pytest.LogCaptureFixture) -> None:
    audit = Audit()
    scope = {"path": "/v1/models", "client": ("10.0.0.1", 1)}
    for _ in range(1000):
        audit.refused(scope, "r", "invalid_api_key", 0.0)
    assert len(fields_of(lines, "omni.audit")) == 60
    audit.refused(scope, "r", "invalid_api_key", 2.0)
    assert fields_of(lines, "omni.audit")[-1]["left_out"] == 940


class Stalled(logging.Handler):
    """Takes nothing until it is released, like a pipe that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.released, self.taken = threading.Event(), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        assert self.released.wait(60)
        self.taken.append(record.getMessage())


def test_a_log_that_nobody_reads_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = Stalled()
    background = Background([stalled], most=10)
    logger = logging.Logger("test")
    logger.addHandler(background)
    for number in range(1000):  # does not come back if the log is waited for
        logger.warning("line %d", number)
    stalled.released.set()
    background.stop(60)
    assert 10 <= len(stalled.taken) <= 14
    assert any("records were dropped" in each for each in stalled.taken)
    assert stalled.taken[0] == "line 0"


def test_what_waits_is_bounded_and_needs_nothing_of_its_request() -> None:
    stalled = Stalled()
    background = Background([stalled])
    record = logging.makeLogRecord({"msg": "%s", "args": ("a" * 100_000,)})
    try:
        raise RuntimeError("b" * 100_000)
    except RuntimeError as error:
        record.exc_info = (RuntimeError, error, error.__traceback__)
    background.emit(record)
    assert (len(record.getMessage()), record.exc_info) == (16_000, None)
    assert record.exc_text is not None
    assert len(record.exc_text) == 16_000
    stalled.released.set()
    background.stop(60)


def test_the_handlers_of_before_come_back() -> None:
    root = logging.getLogger()
    before = root.handlers
    with in_background():
        assert [type(each) for each in root.handlers] == [Background]
    assert root.handlers is before
