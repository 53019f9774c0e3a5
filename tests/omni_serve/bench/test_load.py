"""Requests for speech in both loops over a real socket: times, errors by class, interruption; the table and the JSON of the results."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from omni_serve_clients import running_server
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from omni_core.errors import ConfigError
from omni_serve.bench.cli import bench
from omni_serve.bench.load import TEXTS, Generator, Load, Run, Workload, exchange
from omni_serve.bench.report import Spread, Summary, show
from omni_serve.bench.timeline import Timeline
from omni_serve.remote import BadStreamError, Remote, UnreachableError, base_of, events

PIECES = [bytes(4800)] * 5
"""Half a second of sound, at 24 kHz."""


def workload(scenario: str = "speech", texts: tuple[str, ...] = ()) -> Workload:
    return Workload(model="small", scenario=scenario, texts=texts or TEXTS[scenario], voice="low")


def event(data: Any) -> str:
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"


async def spoken(text: str) -> AsyncIterator[str]:
    """The events of a chat, which end early as the question asks."""
    for piece in PIECES:
        data = "!" if text == "garbage" else base64.b64encode(piece).decode()
        yield event({"choices": [{"delta": {"audio": {"data": data}}}]})
    if text == "fail":
        yield event({"error": {"message": "no", "code": "stage_failed"}})
    elif text != "cut":
        yield event({"choices": [], "usage": {"completion_tokens": 5}})
        yield event("[DONE]")


def app() -> Starlette:
    """A small server of speech."""

    async def models(request: Request) -> Response:
        if request.headers.get("authorization") != "Bearer key":
            return JSONResponse({}, 401)
        return JSONResponse({"data": [{"id": "small"}]})

    async def speech(request: Request) -> Response:
        body = await request.json()
        assert (body["voice"], body["response_format"]) == ("low", "pcm")
        if body["input"] == "busy":
            return JSONResponse({"error": {"message": "later", "code": "overloaded"}}, 429)
        return Response(b"" if body["input"] == "silence" else b"".join(PIECES))

    async def chat(request: Request) -> Response:
        body = await request.json()
        assert (body["modalities"], body["audio"]) == (["text", "audio"], {"format": "pcm16", "voice": "low"})
        return StreamingResponse(spoken(body["messages"][0]["content"]), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/audio/speech", speech, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ]
    )


@pytest.mark.parametrize("scenario", ["speech", "chat"])
async def test_both_loops(scenario: str) -> None:
    async with running_server(app()) as address, Remote(f"http://{address}") as remote:
        generator = Generator(remote, workload(scenario), 12)
        for load in (Load(concurrency=1), Load(concurrency=4), Load(rate=500.0)):
            run = await generator.run(load)
            summary = Summary.of(run)
            assert (summary.succeeded, summary.errors) == (12, {})
            assert sum(each.sound for each in run.timelines) == pytest.approx(12 * 0.5)
            assert {each.tokens for each in run.timelines} == {5 if scenario == "chat" else None}
            assert all(run.begun < each.sounds[0][0] <= each.ended <= run.ended for each in run.timelines)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("scenario", "text", "error"),
    [
        ("speech", "busy", "429 overloaded"),
        ("speech", "silence", "no sound"),
        ("chat", "fail", "in stream: stage_failed"),
        ("chat", "cut", "no [DONE]"),
        ("chat", "garbage", "bad base64"),
    ],
)
async def test_errors_by_class(scenario: str, text: str, error: str) -> None:
    async with running_server(app()) as address, Remote(f"http://{address}") as remote:
        found = await exchange(remote, workload(scenario), text, asyncio.get_running_loop().time())
    assert found.error == error
    assert (await exchange(Remote("http://127.0.0.1:1"), workload(), "x", 0.0)).error == "connection failed"


async def test_an_interrupted_run_keeps_what_has_ended() -> None:
    async with running_server(app()) as address, Remote(f"http://{address}") as remote:
        ended = asyncio.Event()
        generator = Generator(remote, workload(), 10_000, lambda run: ended.set() if len(run.timelines) == 3 else None)
        task = asyncio.ensure_future(generator.run(Load(concurrency=2)))
        await ended.wait()
        task.cancel()
        run = await task
    assert run.interrupted
    assert 3 <= len(run.timelines) <= 5


def test_a_run_is_summarised() -> None:
    fast = Timeline("speech", 0.0, sounds=[(0.25, 1.0), (1.0, 1.0)], ended=1.0)
    paused = Timeline("speech", 0.0, sounds=[(0.25, 0.25), (1.0, 1.0)], ended=1.0)  # silent from 0.5 to 1
    failed = Timeline("speech", 0.0, ended=0.25, error="429 overloaded")
    made = Run(Load(rate=0.5), 0.0, 2.0, client_lag=0.1, timelines=[fast, paused, failed])
    summary = Summary.of(made)
    assert (summary.sent, summary.succeeded, summary.errors) == (3, 2, {"429 overloaded": 1})
    assert (summary.delayed, summary.late, summary.sound_per_second) == (1, 0.5, 1.625)
    assert summary.spreads["gap"].max == 0.5
    assert summary.spreads["rtf"].max == 0.8
    console = Console(record=True, width=160, file=io.StringIO())
    show(console, [made, Run(Load(concurrency=1))])
    shown = console.export_text()
    assert "rate 0.5/s: 1 x 429 overloaded" in shown
    assert "up to 0.1 s late" in shown
    assert "50%" in shown


def test_percentiles_interpolate() -> None:
    assert Spread.of([4.0, 0.0, 2.0, 1.0, 3.0]) == Spread(5, 2.0, 2.0, pytest.approx(3.6), pytest.approx(3.96), 4.0)


async def test_the_command_prints_a_table_and_writes_a_document(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    (tmp_path / "texts").write_text("One.\n\nTwo.\n")
    options = ["--api-key", "key", "--requests", "3", "--voice", "low", "--prompts", str(tmp_path / "texts")]
    async with running_server(app()) as address:
        arguments = ["serve", f"http://{address}/v1", *options, "--concurrency", "1,2", "--json", str(file)]
        result = await asyncio.to_thread(CliRunner().invoke, bench, arguments)
        assert result.exit_code == 0, result.output
        written = json.loads(file.read_text())
        (tmp_path / "texts").write_text("busy\n")
        failing = await asyncio.to_thread(CliRunner().invoke, bench, arguments)
    assert "concurrency 2" in result.output
    assert [run["load"] for run in written["runs"]] == ["concurrency 1", "concurrency 2"]
    assert [len(run["requests"]) for run in written["runs"]] == [3, 3]
    # omni simulate --trace reads these.
    assert {"begun", "scenario", "tokens", "sound"} <= written["runs"][0]["requests"][0].keys()
    assert failing.exit_code == 1
    assert "3 x 429 overloaded" in failing.output


async def test_servers_that_cannot_be_used() -> None:
    with pytest.raises(UnreachableError, match="cannot connect"):
        await Remote("http://127.0.0.1:1").model(None)
    async with running_server(app()) as address:
        assert await Remote(f"http://{address}/v1/", "key").model(None) == "small"
        with pytest.raises(UnreachableError, match="asks for an API key"):
            await Remote(f"http://{address}").model(None)
        with pytest.raises(UnreachableError, match="refuses this API key"):
            await Remote(f"http://{address}", "wrong").model("small")
        with pytest.raises(UnreachableError, match="lists no model"):
            await Remote(f"http://{address}/other/v1", "key").model(None)
    assert base_of("https://example.org/openai/v1/") == "https://example.org/openai"
    with pytest.raises(ConfigError, match="must be an address"):
        base_of("localhost:8000")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rate", "1", "--concurrency", "1"], "give one"),
        (["--rate", "0"], "above 0"),
        (["--concurrency", "1,x"], "a whole number above 0"),
    ],
)
def test_loads_that_cannot_be(options: list[str], message: str) -> None:
    result = CliRunner().invoke(bench, ["serve", "http://127.0.0.1:1", *options])
    assert (result.exit_code, message in result.output) == (2, True)


async def test_events_of_other_servers_are_read() -> None:
    async def read(text: str) -> list[tuple[str, object]]:
        return [each async for each in events(httpx2.Response(200, text=text))]

    assert await read(': ping\n\nevent: a\ndata: {"x":\ndata: 1}\n\ndata:[DONE]') == [{"x": 1}, "[DONE]"]
    with pytest.raises(BadStreamError, match="not JSON"):
        await read("data: {x}\n\n")
